#include "client/cli/proto_json.h"

#include <google/protobuf/descriptor.h>

#include <string>
#include <utility>

#include "base/check.h"

namespace recurve {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using nlohmann::ordered_json;

ordered_json Single(const Message& message, const FieldDescriptor* field) {
  const auto* r = message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return r->GetInt32(message, field);
    case FieldDescriptor::CPPTYPE_INT64:
      return r->GetInt64(message, field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return r->GetUInt32(message, field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return r->GetUInt64(message, field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return r->GetDouble(message, field);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return r->GetFloat(message, field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return r->GetBool(message, field);
    case FieldDescriptor::CPPTYPE_STRING:
      return r->GetString(message, field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return std::string(r->GetEnum(message, field)->name());
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ProtoToJson(r->GetMessage(message, field));
  }
  RECURVE_CHECK(false);
}

ordered_json Element(const Message& message, const FieldDescriptor* field,
                     int index) {
  const auto* r = message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return r->GetRepeatedInt32(message, field, index);
    case FieldDescriptor::CPPTYPE_INT64:
      return r->GetRepeatedInt64(message, field, index);
    case FieldDescriptor::CPPTYPE_UINT32:
      return r->GetRepeatedUInt32(message, field, index);
    case FieldDescriptor::CPPTYPE_UINT64:
      return r->GetRepeatedUInt64(message, field, index);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return r->GetRepeatedDouble(message, field, index);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return r->GetRepeatedFloat(message, field, index);
    case FieldDescriptor::CPPTYPE_BOOL:
      return r->GetRepeatedBool(message, field, index);
    case FieldDescriptor::CPPTYPE_STRING:
      return r->GetRepeatedString(message, field, index);
    case FieldDescriptor::CPPTYPE_ENUM:
      return std::string(r->GetRepeatedEnum(message, field, index)->name());
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ProtoToJson(r->GetRepeatedMessage(message, field, index));
  }
  RECURVE_CHECK(false);
}

}  // namespace

ordered_json ProtoToJson(const Message& message) {
  const auto* descriptor = message.GetDescriptor();
  const auto* reflection = message.GetReflection();
  ordered_json object = ordered_json::object();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    const std::string name(field->name());
    if (field->is_repeated()) {
      ordered_json array = ordered_json::array();
      const int count = reflection->FieldSize(message, field);
      for (int k = 0; k < count; ++k) {
        array.push_back(Element(message, field, k));
      }
      object[name] = std::move(array);
    } else if (!field->has_presence() || reflection->HasField(message, field)) {
      object[name] = Single(message, field);
    }
  }
  return object;
}

}  // namespace recurve
