#ifndef RECURVE_ENGINE_MODELS_LAYER_PART_H_
#define RECURVE_ENGINE_MODELS_LAYER_PART_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/program/builder.h"

namespace recurve {

// A token mixer or a feed-forward: half of a layer. A kind is a folder next to
// this file with all that is its own: the definition, the layout of its cache
// and state, limits of a device, a description, and its operation on each
// device, if it needs one that programs do not have yet. A family's reader
// makes it; nothing else names it.
//
// Thread safety: immutable.
class LayerPart {
 public:
  virtual ~LayerPart() = default;

  // Names the kind: "tpa", "linear", ...
  virtual absl::string_view name() const = 0;
  // One line for a person: "tpa: 8 heads of 64, ...".
  virtual std::string Describe() const = 0;
  // Adds its weights, memory and operations: residual += part(in). `in` is
  // normalised, [T, hidden], and lasts until the next part.
  virtual void Emit(ValueId in, ValueId residual,
                    ProgramBuilder& program) const = 0;
  // Whether the GPU supports it. InvalidArgument names `where`, as "layer 3",
  // the field, its value and the limit.
  virtual absl::Status CheckGpu(absl::string_view where) const = 0;
  // Whether its pages, if it has any, may be float32 on the GPU, too.
  virtual bool TakesFloatPages() const { return true; }
};

// The GPU lacks something; `what` says what is expected.
inline absl::Status NotOnGpu(absl::string_view where, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("the GPU does not support ",
                                                 where, ": ", what,
                                                 " (--device cpu runs it)"));
}

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_LAYER_PART_H_
