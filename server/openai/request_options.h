#ifndef RECURVE_SERVER_OPENAI_REQUEST_OPTIONS_H_
#define RECURVE_SERVER_OPENAI_REQUEST_OPTIONS_H_

#include <string>

#include "nlohmann/json_fwd.hpp"
#include "server/openai/field_reader.h"
#include "server/openai/openai.h"
#include "server/requests/convert.h"

namespace recurve {

// The members that completions and chat have in common. Errors go to `reader`.

// Reads a member that is the same for every prompt into `request` and `base`.
// False: not one of them.
bool ReadOption(const std::string& key, const nlohmann::json& value,
                FieldReader& reader, CompletionRequest* request,
                RequestInput* base);
// Accepts an option of other servers with a value that has no effect.
void ReadNeutral(const std::string& key, const nlohmann::json& value,
                 FieldReader& reader);
// Checks members against each other, once all of `object` are read.
void FinishOptions(const nlohmann::json& object, FieldReader& reader,
                   CompletionRequest* request, RequestInput* base);

}  // namespace recurve

#endif  // RECURVE_SERVER_OPENAI_REQUEST_OPTIONS_H_
