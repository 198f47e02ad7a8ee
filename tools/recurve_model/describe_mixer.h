#ifndef RECURVE_TOOLS_RECURVE_MODEL_DESCRIBE_MIXER_H_
#define RECURVE_TOOLS_RECURVE_MODEL_DESCRIBE_MIXER_H_

#include <string>

#include "engine/models/config.h"

namespace recurve {

// The options of a layer's mixer in one line, decays apart, which differ from
// layer to layer: "tpa: 4 heads of 32, query rank 6, key and value rank 2,
// rotated".
std::string DescribeMixer(const LayerDefinition& layer);

}  // namespace recurve

#endif  // RECURVE_TOOLS_RECURVE_MODEL_DESCRIBE_MIXER_H_
