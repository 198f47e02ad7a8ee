#ifndef RECURVE_CLIENT_CLI_PROTO_JSON_H_
#define RECURVE_CLIENT_CLI_PROTO_JSON_H_

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>

namespace recurve {

// The message as a JSON object with the proto's field names in its order; all
// numbers are JSON numbers. Unset fields with presence are omitted; all others
// are always written. (protobuf's own JSON writes 64-bit integers as strings
// and omits zeros.) Bytes and map fields are not supported: the messages of
// Control have none.
nlohmann::ordered_json ProtoToJson(const google::protobuf::Message& message);

}  // namespace recurve

#endif  // RECURVE_CLIENT_CLI_PROTO_JSON_H_
