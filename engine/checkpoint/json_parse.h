#ifndef RECURVE_ENGINE_CHECKPOINT_JSON_PARSE_H_
#define RECURVE_ENGINE_CHECKPOINT_JSON_PARSE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace recurve {

// Parses one JSON value, strictly: valid UTF-8, no key twice in one object (the
// library alone would keep the last), nothing but white space after the value,
// no number beyond double, and objects and lists at most `max_depth` deep.
// Throws nothing; memory is bounded by a small multiple of the text.
//
// `where` begins every error message: the file, and the part of it.
absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text,
                                         const std::string& where,
                                         int max_depth);

// A value as error messages show it: "9", "'silu'", "a list of 3".
std::string DescribeJson(const nlohmann::json& value);

}  // namespace recurve

#endif  // RECURVE_ENGINE_CHECKPOINT_JSON_PARSE_H_
