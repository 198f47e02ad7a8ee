#ifndef RECURVE_ENGINE_TOKENIZER_STREAM_DECODER_H_
#define RECURVE_ENGINE_TOKENIZER_STREAM_DECODER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/utf8.h"

namespace recurve {

// Turns the tokens of one sequence into text that is safe to show: whole
// UTF-8 characters only, and nothing that may turn out to belong to a stop
// string. The pieces, put together, do not depend on how the text was cut into
// tokens.
//
// The text ends before the stop string that is complete first; where several
// end there, before the longest. So nothing that may follow changes what has
// stopped. Stop strings are matched against decoded text, so one that is empty
// or not valid UTF-8 never matches: the caller refuses those.
//
// Holds back less text than the longest stop string has bytes, and at most
// three undecoded bytes. Copyable, so that a sequence can be forked. One thread
// at a time.
class StreamDecoder {
 public:
  // `tokenizer` must outlive this object.
  StreamDecoder(const Tokenizer* tokenizer,
                std::vector<std::string> stop_strings);

  // Tells which tokens came before, whose text is not shown: whether the first
  // one that is shown begins the text decides about its leading space. Before
  // the first Append(). REQUIRES: ids as for Append().
  void SkipBefore(absl::Span<const int32_t> ids);

  // Takes the next token and returns the text that is safe now, often empty.
  // Ignored once stopped. REQUIRES: 0 <= id < tokenizer->vocab_size().
  std::string Append(int32_t id);

  // The sequence is over: returns what was held back, an unfinished character
  // as U+FFFD, which may complete a stop string that has one.
  std::string Flush();

  // Whether a stop string was found; nothing more comes out then.
  bool stopped() const { return matched_ >= 0; }
  // REQUIRES: stopped().
  const std::string& matched_stop_string() const;

 private:
  // Returns the safe part of held_ and removes it. `final` when no more text
  // comes, so that nothing needs to wait.
  std::string Release(bool final);
  // Where the stop string begins in held_ that is complete first, which becomes
  // matched_; npos if there is none.
  size_t FindStop();
  // The first byte of held_ from which on more text could complete one.
  size_t FindBeginning() const;

  const Tokenizer* tokenizer_;
  std::vector<std::string> stop_strings_;
  bool at_start_ = true;  // no text came yet
  Utf8Decoder utf8_;
  std::string held_;  // decoded, whole characters
  int matched_ = -1;  // index in stop_strings_
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_STREAM_DECODER_H_
