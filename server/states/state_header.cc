#include "server/states/state_header.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/wire_format.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace recurve {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormat;
using google::protobuf::internal::WireFormatLite;

absl::Status NotAHeader() {
  return absl::InvalidArgumentError(
      "the state's header is not a recurve.v1.StateHeader");
}

absl::Status CheckAtMost(absl::string_view field, uint64_t value,
                         uint64_t allowed) {
  if (value <= allowed) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the state's ", field, " is ",
                                                 value, "; at most ", allowed,
                                                 " is allowed"));
}

// Refuses fields that `type` lacks, before the message is parsed: protobuf
// would keep them, in many times their size.
absl::Status CheckFields(absl::string_view bytes, const Descriptor& type) {
  google::protobuf::io::CodedInputStream input(
      reinterpret_cast<const uint8_t*>(bytes.data()),
      static_cast<int>(bytes.size()));
  while (const uint32_t tag = input.ReadTag()) {
    const int number = WireFormatLite::GetTagFieldNumber(tag);
    const FieldDescriptor* const field = type.FindFieldByNumber(number);
    const auto wire = WireFormatLite::GetTagWireType(tag);
    // A repeated field may also have a tag for each element.
    if (field == nullptr ||
        (wire != WireFormat::WireTypeForField(field) &&
         wire != WireFormat::WireTypeForFieldType(field->type()))) {
      return absl::FailedPreconditionError(
          absl::StrCat("the state's header has a field of number ", number,
                       " and wire type ", static_cast<int>(wire), " in ",
                       type.name(), ", which this server does not know"));
    }
    if (field->message_type() == nullptr) {
      if (!WireFormatLite::SkipField(&input, tag)) return NotAHeader();
      continue;
    }
    uint32_t length = 0;
    if (!input.ReadVarint32(&length)) return NotAHeader();
    const absl::string_view rest =
        bytes.substr(static_cast<size_t>(input.CurrentPosition()));
    if (length > rest.size()) return NotAHeader();
    RECURVE_RETURN_IF_ERROR(
        CheckFields(rest.substr(0, length), *field->message_type()));
    input.Skip(static_cast<int>(length));
  }
  return input.ConsumedEntireMessage() ? absl::OkStatus() : NotAHeader();
}

std::string ValueText(const v1::StateFingerprint& fingerprint,
                      const FieldDescriptor* field) {
  std::string text;
  google::protobuf::TextFormat::PrintFieldValueToString(fingerprint, field, -1,
                                                        &text);
  return text;
}

// A value of bounded length: strings come from untrusted input.
std::string Shortened(const std::string& text) {
  constexpr size_t kMaxShown = 200;
  if (text.size() <= kMaxShown) return text;
  return absl::StrCat(text.substr(0, kMaxShown), "...");
}

}  // namespace

absl::Status CheckStateHeader(const v1::StateHeader& header) {
  if (!header.has_fingerprint()) {
    return absl::InvalidArgumentError("the state's header has no fingerprint");
  }
  RECURVE_RETURN_IF_ERROR(CheckAtMost(
      "fingerprint's size in bytes", header.fingerprint().ByteSizeLong(),
      static_cast<uint64_t>(kMaxStateFingerprintBytes)));
  const auto tokens = static_cast<uint64_t>(header.token_ids_size());
  if (header.token_kinds().size() != tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the state's token_kinds are ", header.token_kinds().size(), " for ",
        tokens, " token_ids"));
  }
  RECURVE_RETURN_IF_ERROR(
      CheckAtMost("computed_tokens", header.computed_tokens(), tokens));
  if (!header.last_logits().empty() && header.computed_tokens() < tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("the state has last_logits, but computed_tokens is ",
                     header.computed_tokens(), " of ", tokens));
  }
  RECURVE_RETURN_IF_ERROR(
      CheckAtMost("num_blocks", header.num_blocks(), kMaxStateBlocks));
  const uint64_t block_bytes = header.fingerprint().block_bytes();
  RECURVE_RETURN_IF_ERROR(
      CheckAtMost("fingerprint.block_bytes", block_bytes, kMaxStateBlockBytes));
  if (header.num_blocks() > 0 && block_bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the state's fingerprint.block_bytes is 0, but it has ",
                     header.num_blocks(), " blocks"));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::StateHeader> ParseStateHeader(absl::string_view bytes) {
  RECURVE_CHECK(static_cast<int64_t>(bytes.size()) <= kMaxStateHeaderBytes);
  RECURVE_RETURN_IF_ERROR(CheckFields(bytes, *v1::StateHeader::descriptor()));
  v1::StateHeader header;
  if (!header.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return NotAHeader();
  }
  RECURVE_RETURN_IF_ERROR(CheckStateHeader(header));
  return header;
}

absl::Status CheckFingerprint(const v1::StateFingerprint& theirs,
                              const v1::StateFingerprint& ours) {
  // By reflection, so that a new field is compared, too.
  const Descriptor& type = *v1::StateFingerprint::descriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* const field = type.field(i);
    const std::string their_text = ValueText(theirs, field);
    const std::string our_text = ValueText(ours, field);
    if (their_text == our_text) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "the state's fingerprint.", field->name(), " is ",
        Shortened(their_text), "; this server's is ", Shortened(our_text)));
  }
  return absl::OkStatus();
}

}  // namespace recurve
