#ifndef RECURVE_ENGINE_TOKENIZER_STREAM_DECODER_H_
#define RECURVE_ENGINE_TOKENIZER_STREAM_DECODER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/utf8.h"

namespace recurve {

// Turns the tokens of one sequence into text that is safe to show: whole UTF-8
// characters only, and nothing that may be part of a stop string. The
// concatenated pieces do not depend on how the text was split into tokens.
//
// The text ends before the stop string that is complete first; if several end
// at the same place, before the longest. So later text cannot change where it
// stopped. Stop strings are matched against decoded text, so one that is empty
// or not valid UTF-8 never matches: the caller refuses those.
//
// Special tokens have no text, unless they are wanted: then they have their
// spelling, with no space around it.
//
// Holds back less text than the longest stop string has bytes, and at most
// three undecoded bytes, but for a tokenizer with byte fallback the whole run
// of byte tokens at the end: any further byte may make all of it U+FFFD.
// Copyable, so that a sequence can be forked. One thread at a time.
class StreamDecoder {
 public:
  struct Options {
    // No aggregate, which {} would mean as much as a list of no stop strings.
    Options(std::vector<std::string> stop_strings, bool includes_stop,
            bool special_tokens)
        : stop_strings(std::move(stop_strings)),
          includes_stop(includes_stop),
          special_tokens(special_tokens) {}

    std::vector<std::string> stop_strings;
    bool includes_stop;   // the text ends behind the stop string
    bool special_tokens;  // have their spelling as text
  };
  // `tokenizer` must outlive this object.
  StreamDecoder(const Tokenizer* tokenizer, Options options);
  StreamDecoder(const Tokenizer* tokenizer,
                std::vector<std::string> stop_strings)
      : StreamDecoder(tokenizer,
                      Options(std::move(stop_strings), false, false)) {}

  // Skips tokens whose text is not shown. The first token shown has a leading
  // space only if it does not begin the text. Before the first Append().
  // REQUIRES: ids as for Append().
  void SkipBefore(absl::Span<const int32_t> ids);

  // Accepts the next token and returns the text that is safe now, often empty.
  // Ignored once stopped. A stop string that is complete with a token for which
  // not `may_stop` is text like any other. REQUIRES: 0 <= id <
  // tokenizer->vocab_size(); after a token that may stop, all may.
  std::string Append(int32_t id, bool may_stop = true);

  // Ends the sequence: returns the text held back. An incomplete character
  // becomes U+FFFD, which may complete a stop string that contains one.
  std::string Flush();

  // Whether a stop string was found; no more text follows then.
  bool stopped() const { return matched_ >= 0; }
  // REQUIRES: stopped().
  const std::string& matched_stop_string() const;

 private:
  // The spelling of a special token, if it is to be text; else empty.
  absl::string_view SpecialText(int32_t id) const;
  // Decodes run_, which no byte follows.
  void EndRun();
  // Returns the safe part of held_ and removes it. `final`: no more text comes,
  // so all of it is safe.
  std::string Release(bool final);
  // Start of the first complete stop string in held_, which becomes matched_;
  // npos if there is none.
  size_t FindStop();
  // The first byte of held_ from which later text could complete a stop string.
  size_t FindBeginning() const;

  const Tokenizer* tokenizer_;
  std::vector<std::string> stop_strings_;
  bool includes_stop_;
  bool special_tokens_;
  bool at_start_ = true;  // no text yet
  std::string run_;       // bytes of a run of byte tokens
  Utf8Decoder utf8_;
  std::string held_;  // decoded, whole characters
  // A stop string that ends within the first `free_` bytes of held_ is none.
  size_t free_ = 0;
  bool may_stop_ = true;  // of the last token
  int matched_ = -1;      // index in stop_strings_
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_STREAM_DECODER_H_
