#include "engine/tokenizer/normalizer.h"

#include "absl/strings/str_replace.h"
#include "engine/tokenizer/nfc.h"

namespace recurve {

std::string Normalizer::Normalize(absl::string_view text) const {
  std::string out(text);
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Step::Kind::kNfc:
        out = NormalizeNfc(out);
        break;
      case Step::Kind::kPrepend:
        if (!out.empty()) out.insert(0, step.to);
        break;
      case Step::Kind::kReplace:
        out = absl::StrReplaceAll(out, {{step.from, step.to}});
        break;
    }
  }
  return out;
}

}  // namespace recurve
