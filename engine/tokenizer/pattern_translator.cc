#include "engine/tokenizer/pattern_translator.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/checkpoint/quote.h"
#include "engine/tokenizer/symbols.h"

namespace recurve {
namespace {

SymbolSet Single(char c) { return SymbolSet().set(static_cast<uint8_t>(c)); }

// \p{name}; empty for an unknown name.
SymbolSet PropertySymbols(absl::string_view name) {
  static constexpr std::pair<absl::string_view, UnicodeClass> kClasses[] = {
      {"L", UnicodeClass::kLetter},       {"M", UnicodeClass::kMark},
      {"Nd", UnicodeClass::kDecimal},     {"Nl", UnicodeClass::kLetterNumber},
      {"No", UnicodeClass::kOtherNumber},
  };
  SymbolSet set;
  for (const auto& [class_name, unicode_class] : kClasses) {
    if (class_name.substr(0, name.size()) == name) {
      set |= SymbolsOf(unicode_class);
    }
  }
  return set;
}

// Both cases of every letter of the set, for (?i:...).
SymbolSet BothCases(SymbolSet set) {
  for (char c = 'a'; c <= 'z'; ++c) {
    const auto lower = static_cast<uint8_t>(c);
    const auto upper = static_cast<uint8_t>(absl::ascii_toupper(lower));
    if (set[lower] || set[upper]) set.set(lower).set(upper);
  }
  if (set['s']) set.set(kLongS);
  if (set['k']) set.set(kKelvinSign);
  return set;
}

class Translator {
 public:
  explicit Translator(absl::string_view pattern) : pattern_(pattern) {}

  absl::StatusOr<std::string> Translate() {
    while (at_ < pattern_.size()) RECURVE_RETURN_IF_ERROR(Item());
    if (ignore_case_.size() != 1) return Unsupported(at_, "an open group");
    return std::move(out_);
  }

 private:
  absl::Status Unsupported(size_t at, absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", what, " at byte ", at, ", near ",
                     Quote(pattern_.substr(at, 12)), ", which is unsupported"));
  }

  bool Take(absl::string_view text) {
    if (!absl::StartsWith(pattern_.substr(at_), text)) return false;
    at_ += text.size();
    return true;
  }

  absl::Status Item() {
    const char c = pattern_[at_];
    switch (c) {
      case '|':
        ++at_;
        out_.push_back('|');
        return absl::OkStatus();
      case '(':
        return OpenGroup();
      case ')':
        if (ignore_case_.size() == 1) return Unsupported(at_, "')'");
        ++at_;
        ignore_case_.pop_back();
        out_.push_back(')');
        return Quantifier();
      case '[': {
        RECURVE_ASSIGN_OR_RETURN(const SymbolSet set, Class());
        Emit(set);
        return Quantifier();
      }
      case '\\': {
        RECURVE_ASSIGN_OR_RETURN(const SymbolSet set, Escape());
        Emit(set);
        return Quantifier();
      }
      case '*':
      case '+':
      case '?':
      case '{':
      case '}':
      case ']':
      case '^':
      case '$':
      case '.':
        return Unsupported(at_,
                           absl::StrCat("'", absl::string_view(&c, 1), "'"));
      default:
        if (!absl::ascii_isascii(c)) {
          return Unsupported(at_, "a literal that is not ASCII");
        }
        ++at_;
        Emit(Single(c));
        return Quantifier();
    }
  }

  absl::Status OpenGroup() {
    const size_t begin = at_;
    bool ignore_case = ignore_case_.back();
    if (Take("(?i:")) {
      ignore_case = true;
      out_ += "(?:";  // Emit() adds the other case
    } else if (Take("(?=")) {
      out_ += "(?=";
    } else if (Take("(?!")) {
      out_ += "(?!";
    } else if (Take("(?:") || !absl::StartsWith(pattern_.substr(at_), "(?")) {
      if (at_ == begin) ++at_;
      out_ += "(?:";
    } else {
      return Unsupported(begin, "a group of this kind");
    }
    ignore_case_.push_back(ignore_case);
    return absl::OkStatus();
  }

  // An optional quantifier; Item() refuses a second one.
  absl::Status Quantifier() {
    if (at_ == pattern_.size()) return absl::OkStatus();
    const char c = pattern_[at_];
    if (c == '{') return Interval();
    if (c != '*' && c != '+' && c != '?') return absl::OkStatus();
    out_.push_back(pattern_[at_++]);
    if (at_ < pattern_.size() && (pattern_[at_] == '?' || pattern_[at_] == '+'))
      out_.push_back(pattern_[at_++]);
    return absl::OkStatus();
  }

  absl::Status Interval() {
    const size_t begin = at_++;
    const auto digits = [&] {
      const size_t from = at_;
      while (at_ < pattern_.size() && absl::ascii_isdigit(pattern_[at_])) ++at_;
      return at_ > from && at_ - from <= 3;
    };
    bool good = digits();
    if (good && Take(",") && at_ < pattern_.size() && pattern_[at_] != '}') {
      good = digits();
    }
    if (!good || !Take("}")) return Unsupported(begin, "'{'");
    const absl::string_view interval = pattern_.substr(begin, at_ - begin);
    out_.append(interval.data(), interval.size());
    return absl::OkStatus();
  }

  // At a backslash; moves past the escape.
  absl::StatusOr<SymbolSet> Escape() {
    const size_t begin = at_++;
    if (at_ == pattern_.size()) return Unsupported(begin, "a lone backslash");
    const char c = pattern_[at_++];
    if (absl::ascii_ispunct(c)) return Single(c);
    switch (c) {
      case 's':
        return SymbolsOf(UnicodeClass::kSpace);
      case 'S':
        return ~SymbolsOf(UnicodeClass::kSpace);
      case 'd':
        return SymbolsOf(UnicodeClass::kDecimal);
      case 'D':
        return ~SymbolsOf(UnicodeClass::kDecimal);
      case 'r':
        return Single('\r');
      case 'n':
        return Single('\n');
      case 't':
        return Single('\t');
      case 'f':
        return Single('\f');
      case 'p':
      case 'P': {
        const size_t end = pattern_.find('}', at_);
        if (!Take("{") || end == absl::string_view::npos) break;
        const SymbolSet set = PropertySymbols(pattern_.substr(at_, end - at_));
        if (end == at_ || set.none()) break;
        at_ = end + 1;
        return c == 'p' ? set : ~set;
      }
      default:
        break;
    }
    return Unsupported(begin, "an escape of this kind");
  }

  // At a '['; moves past the class.
  absl::StatusOr<SymbolSet> Class() {
    const size_t begin = at_++;
    const bool negated = Take("^");
    SymbolSet set;
    for (bool first = true;; first = false) {
      if (at_ == pattern_.size()) return Unsupported(begin, "an open class");
      if (pattern_[at_] == ']') {
        if (first) return Unsupported(begin, "a class that begins with ']'");
        ++at_;
        break;
      }
      RECURVE_ASSIGN_OR_RETURN(const SymbolSet part, ClassPart());
      set |= part;
    }
    if (ignore_case_.back()) set = BothCases(set);
    return negated ? ~set : set;
  }

  // One character, range or escape inside a class.
  absl::StatusOr<SymbolSet> ClassPart() {
    const size_t begin = at_;
    const char c = pattern_[at_];
    if (c == '[' || !absl::ascii_isascii(c) ||
        absl::StartsWith(pattern_.substr(at_), "&&")) {
      return Unsupported(at_, "a class of this kind");
    }
    if (c == '\\') {
      RECURVE_ASSIGN_OR_RETURN(const SymbolSet set, Escape());
      if (at_ + 1 < pattern_.size() && pattern_[at_] == '-' &&
          pattern_[at_ + 1] != ']') {
        return Unsupported(begin, "a range from an escape");
      }
      return set;
    }
    ++at_;
    if (at_ + 1 >= pattern_.size() || pattern_[at_] != '-' ||
        pattern_[at_ + 1] == ']') {
      return Single(c);
    }
    const char last = pattern_[at_ + 1];
    if (!absl::ascii_isalnum(last) || last < c) {
      return Unsupported(begin, "a range of this kind");
    }
    at_ += 2;
    SymbolSet set;
    for (char member = c; member <= last; ++member) set |= Single(member);
    return set;
  }

  void Emit(SymbolSet set) {
    if (ignore_case_.back()) set = BothCases(set);
    out_.push_back('[');
    for (size_t i = 0; i < set.size(); ++i) {
      if (!set[i]) continue;
      size_t last = i;
      while (last + 1 < set.size() && set[last + 1]) ++last;
      absl::StrAppendFormat(&out_, "\\x%02x-\\x%02x", i, last);
      i = last;
    }
    // An empty set, such as [^\s\S], must stay empty.
    out_ += set.none() ? "^\\x00-\\xff]" : "]";
  }

  const absl::string_view pattern_;
  size_t at_ = 0;  // byte of pattern_
  std::string out_;
  std::vector<bool> ignore_case_ = {false};  // for each open group
};

}  // namespace

absl::StatusOr<std::string> TranslatePattern(absl::string_view pattern) {
  return Translator(pattern).Translate();
}

}  // namespace recurve
