#include "engine/tokenizer/sentencepiece_model.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/checkpoint/quote.h"
#include "engine/tokenizer/proto_reader.h"

namespace recurve {
namespace {

using Model = SentencePieceModel;

absl::Status Invalid(const std::string& file, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", problem));
}

absl::Status Broken(const std::string& file, absl::string_view part) {
  return Invalid(file, absl::StrCat("not a SentencePiece model: ", part,
                                    " is not a protobuf message"));
}

absl::Status ReadPiece(const std::string& file, absl::string_view bytes,
                       Model* model) {
  const size_t id = model->pieces.size();
  Model::Piece piece;
  ProtoReader reader(bytes);
  while (reader.Next()) {
    if (reader.field() == 1) piece.text = std::string(reader.bytes());
    if (reader.field() == 2) piece.score = reader.float32();
    if (reader.field() != 3) continue;
    if (reader.varint() < 1 || reader.varint() > 6) {
      return Invalid(file, absl::StrCat("the type of piece ", id, " is ",
                                        reader.varint(), "; expected 1 to 6"));
    }
    piece.type = static_cast<Model::Type>(reader.varint());
  }
  if (!reader.ok()) return Broken(file, absl::StrCat("piece ", id));
  if (piece.text.empty()) {
    return Invalid(file, absl::StrCat("piece ", id, " is empty"));
  }
  model->pieces.push_back(std::move(piece));
  return absl::OkStatus();
}

absl::Status ReadTrainerSpec(const std::string& file, absl::string_view bytes,
                             Model* model) {
  ProtoReader reader(bytes);
  while (reader.Next()) {
    if (reader.field() == 3) {
      if (reader.varint() != 1 && reader.varint() != 2) {
        return Invalid(
            file, absl::StrCat("trainer_spec.model_type is ", reader.varint(),
                               "; supported: 1 (unigram), 2 (BPE)"));
      }
      model->algorithm = static_cast<Model::Algorithm>(reader.varint());
    }
    if (reader.field() == 24)
      model->whitespace_as_suffix = reader.varint() != 0;
    if (reader.field() == 35) model->byte_fallback = reader.varint() != 0;
    if (reader.field() == 44) model->unk_surface = std::string(reader.bytes());
    if (reader.field() == 47) model->eos_piece = std::string(reader.bytes());
  }
  return reader.ok() ? absl::OkStatus() : Broken(file, "trainer_spec");
}

absl::Status ReadNormalizerSpec(const std::string& file,
                                absl::string_view bytes, Model* model) {
  ProtoReader reader(bytes);
  while (reader.Next()) {
    const bool on = reader.varint() != 0;
    if (reader.field() == 2) model->charsmap = std::string(reader.bytes());
    if (reader.field() == 3) model->add_dummy_prefix = on;
    if (reader.field() == 4) model->remove_extra_whitespaces = on;
    if (reader.field() == 5) model->escape_whitespaces = on;
  }
  return reader.ok() ? absl::OkStatus() : Broken(file, "normalizer_spec");
}

absl::Status CheckDenormalizer(const std::string& file,
                               absl::string_view bytes) {
  ProtoReader reader(bytes);
  while (reader.Next()) {
    if (reader.field() == 2 && !reader.bytes().empty()) {
      return Invalid(file,
                     "denormalizer_spec has a precompiled_charsmap; supported: "
                     "none");
    }
  }
  return reader.ok() ? absl::OkStatus() : Broken(file, "denormalizer_spec");
}

absl::Status ReadModel(const std::string& file, absl::string_view bytes,
                       Model* model) {
  ProtoReader reader(bytes);
  while (reader.Next()) {
    absl::Status status;
    if (reader.field() == 1) status = ReadPiece(file, reader.bytes(), model);
    if (reader.field() == 2) {
      status = ReadTrainerSpec(file, reader.bytes(), model);
    }
    if (reader.field() == 3) {
      status = ReadNormalizerSpec(file, reader.bytes(), model);
    }
    if (reader.field() == 5) status = CheckDenormalizer(file, reader.bytes());
    RECURVE_RETURN_IF_ERROR(status);
  }
  return reader.ok() ? absl::OkStatus() : Broken(file, "the file");
}

// The byte of "<0x41>", or -1.
int ByteOfPiece(absl::string_view text) {
  for (int byte = 0; byte < 256; ++byte) {
    if (text == absl::StrFormat("<0x%02X>", byte)) return byte;
  }
  return -1;
}

absl::Status IndexBytes(const std::string& file, Model* model) {
  model->byte_ids.fill(-1);
  for (size_t id = 0; id < model->pieces.size(); ++id) {
    const Model::Piece& piece = model->pieces[id];
    if (piece.type != Model::Type::kByte) continue;
    const int byte = ByteOfPiece(piece.text);
    if (byte < 0) {
      return Invalid(file,
                     absl::StrCat("byte piece ", id, " is ", Quote(piece.text),
                                  "; expected '<0x00>' to '<0xFF>'"));
    }
    model->byte_ids[byte] = static_cast<int32_t>(id);
  }
  for (int byte = 0; model->byte_fallback && byte < 256; ++byte) {
    if (model->byte_ids[byte] >= 0) continue;
    return Invalid(file, absl::StrFormat("trainer_spec.byte_fallback is true "
                                         "and the piece <0x%02X> is missing",
                                         byte));
  }
  return absl::OkStatus();
}

absl::Status IndexPieces(const std::string& file, Model* model) {
  using Type = Model::Type;
  for (size_t i = 0; i < model->pieces.size(); ++i) {
    const Model::Piece& piece = model->pieces[i];
    const auto id = static_cast<int32_t>(i);
    if (piece.type == Type::kUnknown) {
      if (model->unk_id >= 0) {
        return Invalid(file, absl::StrCat("pieces ", model->unk_id, " and ", id,
                                          " are both of type unknown"));
      }
      model->unk_id = id;
    }
    if (piece.type == Type::kUserDefined) {
      model->user_defined.Add(piece.text, id);
    }
    if (model->IsWord(id) && !model->words.try_emplace(piece.text, id).second) {
      return Invalid(file, absl::StrCat("piece ", id, " is ", Quote(piece.text),
                                        ", as an earlier one is"));
    }
    if (model->IsWord(id)) model->word_prefixes.Add(piece.text, id);
  }
  if (model->unk_id < 0) {
    return Invalid(file, "no piece is of type unknown; expected one");
  }
  return IndexBytes(file, model);
}

}  // namespace

bool SentencePieceModel::IsWord(int32_t id) const {
  if (static_cast<size_t>(id) >= pieces.size()) return false;
  const Type type = pieces[static_cast<size_t>(id)].type;
  return type == Type::kNormal || type == Type::kUserDefined ||
         type == Type::kUnused;
}

absl::StatusOr<SentencePieceModel> ParseSentencePieceModel(
    const std::string& file, absl::string_view bytes) {
  if (absl::StartsWith(bytes,
                       "IQ== ")) {  // "!" in base64: Llama 3's first line
    return Invalid(file,
                   "a tiktoken rank file; supported under this name: a "
                   "SentencePiece model");
  }
  Model model;
  RECURVE_RETURN_IF_ERROR(ReadModel(file, bytes, &model));
  RECURVE_RETURN_IF_ERROR(IndexPieces(file, &model));
  return model;
}

}  // namespace recurve
