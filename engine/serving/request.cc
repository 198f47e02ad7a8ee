#include "engine/serving/request.h"

#include <algorithm>
#include <cstdlib>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace recurve {
namespace {

template <typename Number>
absl::Status CheckRange(absl::string_view field, Number value, double min,
                        double max, absl::string_view limit) {
  // Written so that a NaN fails.
  if (value >= min && value <= max) return absl::OkStatus();
  std::string text;
  if constexpr (std::is_floating_point_v<Number>) {
    // Enough digits to distinguish a float from its neighbours: 1.0000001 is
    // not 1.
    text = absl::StrFormat("%.9g", value);
  } else {
    text = absl::StrCat(value);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", text, "; expected ", limit));
}

absl::Status CheckToken(absl::string_view field, int64_t id,
                        int64_t vocab_size) {
  if (id >= 0 && id < vocab_size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      field, " is ", id, "; the vocabulary has ids 0 to ", vocab_size - 1));
}

absl::Status CheckCount(absl::string_view field, size_t count, size_t limit) {
  if (count <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      field, " has ", count, " entries; at most ", limit, " are allowed"));
}

absl::Status CheckOption(absl::string_view field, float value,
                         const OptionRange& range) {
  return CheckRange(field, value, range.min, range.max,
                    absl::StrCat(range.min, " to ", range.max));
}

absl::Status ValidateSampling(const SamplingParams& s,
                              const RequestLimits& limits,
                              const FieldNames& names) {
  const auto name = [&](absl::string_view field) {
    return absl::StrCat(names.sampling, field);
  };
  RECURVE_RETURN_IF_ERROR(
      CheckOption(name("temperature"), s.temperature, kTemperatureRange));
  RECURVE_RETURN_IF_ERROR(CheckOption(name("repetition_penalty"),
                                      s.repetition_penalty,
                                      kRepetitionPenaltyRange));
  RECURVE_RETURN_IF_ERROR(
      CheckOption(name("presence_penalty"), s.presence_penalty, kPenaltyRange));
  RECURVE_RETURN_IF_ERROR(CheckOption(name("frequency_penalty"),
                                      s.frequency_penalty, kPenaltyRange));
  RECURVE_RETURN_IF_ERROR(CheckRange(name("top_p"), s.top_p, kTopPRange.min,
                                     kTopPRange.max, kTopPExpected));
  RECURVE_RETURN_IF_ERROR(CheckOption(name("min_p"), s.min_p, kMinPRange));
  RECURVE_RETURN_IF_ERROR(
      CheckRange(name("top_k"), s.top_k, 0, 2147483647, "0 to 2147483647"));
  RECURVE_RETURN_IF_ERROR(
      CheckCount(name("logit_bias"), s.logit_bias.size(), kMaxLogitBias));
  for (const auto& [id, bias] : s.logit_bias) {
    RECURVE_RETURN_IF_ERROR(
        CheckToken(name("logit_bias key"), id, limits.vocab_size));
    RECURVE_RETURN_IF_ERROR(CheckOption(
        absl::StrCat(name("logit_bias"), "[", id, "]"), bias, kLogitBiasRange));
  }
  return CheckRange("logprobs", s.num_logprobs, -1, kMaxLogprobs,
                    absl::StrCat("0 to ", kMaxLogprobs));
}

// That something is left to draw.
absl::Status ValidateMask(const StoppingParams& s, const RequestLimits& limits,
                          const FieldNames& names) {
  const std::string field = absl::StrCat(names.stopping, "min_tokens");
  RECURVE_RETURN_IF_ERROR(
      CheckRange(field, s.min_tokens, 0, 2147483647, "0 to 2147483647"));
  if (s.min_tokens == 0) return absl::OkStatus();
  const auto masked =
      static_cast<int64_t>(MaskedTokens(s, limits.eos_token_ids).size());
  if (masked >= limits.vocab_size || masked > kMaxMaskedTokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        field, " is ", s.min_tokens, ", and ", masked, " of ",
        limits.vocab_size,
        " tokens are end-of-sequence or stop tokens; expected at most ",
        std::min<int64_t>(limits.vocab_size - 1, kMaxMaskedTokens)));
  }
  return absl::OkStatus();
}

absl::Status ValidateStopping(const StoppingParams& s,
                              const RequestLimits& limits,
                              const FieldNames& names) {
  const std::string ids = absl::StrCat(names.stopping, "stop_token_ids");
  const std::string strings = absl::StrCat(names.stopping, names.stop_strings);
  RECURVE_RETURN_IF_ERROR(
      CheckCount(ids, s.stop_token_ids.size(), kMaxStopTokenIds));
  for (size_t i = 0; i < s.stop_token_ids.size(); ++i) {
    RECURVE_RETURN_IF_ERROR(CheckToken(absl::StrCat(ids, "[", i, "]"),
                                       s.stop_token_ids[i], limits.vocab_size));
  }
  RECURVE_RETURN_IF_ERROR(
      CheckCount(strings, s.stop_strings.size(), kMaxStopStrings));
  if (!s.stop_strings.empty() && !limits.has_tokenizer) {
    return absl::InvalidArgumentError(
        absl::StrCat(strings, " needs a tokenizer, and this model has none"));
  }
  for (size_t i = 0; i < s.stop_strings.size(); ++i) {
    if (s.stop_strings[i].empty() ||
        s.stop_strings[i].size() > kMaxStopStringBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(strings, "[", i, "] has ", s.stop_strings[i].size(),
                       " bytes; expected 1 to ", kMaxStopStringBytes));
    }
  }
  return ValidateMask(s, limits, names);
}

}  // namespace

std::vector<int32_t> MaskedTokens(const StoppingParams& stopping,
                                  absl::Span<const int32_t> eos_token_ids) {
  if (stopping.min_tokens == 0) return {};
  std::vector<int32_t> ids = stopping.stop_token_ids;
  ids.insert(ids.end(), eos_token_ids.begin(), eos_token_ids.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

absl::Status ValidateMinTokens(const SequenceOptions& options, int64_t generate,
                               const FieldNames& names) {
  const int64_t least = options.stopping.min_tokens;
  if (least <= generate) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      names.stopping, "min_tokens is ", least, "; expected at most ",
      names.generate, ", which is ", generate));
}

absl::Status ValidateOptions(const SequenceOptions& options,
                             const RequestLimits& limits,
                             const FieldNames& names) {
  RECURVE_RETURN_IF_ERROR(ValidateSampling(options.sampling, limits, names));
  RECURVE_RETURN_IF_ERROR(ValidateStopping(options.stopping, limits, names));
  if (options.cache_key.size() > kMaxCacheKeyBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(names.cache_key, " has ", options.cache_key.size(),
                     " bytes; expected at most ", kMaxCacheKeyBytes));
  }
  return CheckRange("priority", options.priority, -kMaxPriority, kMaxPriority,
                    absl::StrCat(-kMaxPriority, " to ", kMaxPriority));
}

absl::Status ValidateSnapshots(const SequenceOptions& options,
                               int64_t num_tokens, const FieldNames& names) {
  RECURVE_RETURN_IF_ERROR(CheckCount(
      names.snapshot_at, options.snapshot_at.size(), kMaxNamedSnapshots));
  for (size_t i = 0; i < options.snapshot_at.size(); ++i) {
    RECURVE_RETURN_IF_ERROR(
        CheckRange(absl::StrCat(names.snapshot_at, "[", i, "]"),
                   options.snapshot_at[i], 1, static_cast<double>(num_tokens),
                   absl::StrCat("1 to the prompt's ", num_tokens, " tokens")));
  }
  return absl::OkStatus();
}

absl::Status ValidateKept(std::optional<int64_t> rollback_to, bool keep,
                          absl::Span<const int64_t> kept,
                          absl::string_view field) {
  auto left = static_cast<int64_t>(kept.size());
  if (rollback_to) {
    const int64_t to = *rollback_to;
    if (kept.empty()) {
      return absl::OutOfRangeError(absl::StrCat(
          field, " is ", to, "; no earlier command of this call has keep"));
    }
    const int64_t nearest =
        *std::min_element(kept.begin(), kept.end(), [&](int64_t a, int64_t b) {
          return std::abs(a - to) < std::abs(b - to);
        });
    if (nearest != to) {
      return absl::OutOfRangeError(absl::StrCat(
          field, " is ", to, "; the nearest point kept is ", nearest));
    }
    left = std::upper_bound(kept.begin(), kept.end(), to) - kept.begin();
  }
  if (keep && left == kMaxKeptPoints) {
    return absl::ResourceExhaustedError(
        absl::StrCat("keep is set, and the sequence keeps ", left,
                     " points already; at most ", kMaxKeptPoints));
  }
  return absl::OkStatus();
}

absl::Status ValidateCommand(const Command& command, int64_t num_tokens,
                             const RequestLimits& limits,
                             absl::string_view append,
                             const FieldNames& names) {
  if (command.append.empty() && command.generate == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(append,
                     " is empty and nothing is to be generated; a command "
                     "appends or generates at least one token"));
  }
  const int64_t appended = static_cast<int64_t>(command.append.size());
  RECURVE_RETURN_IF_ERROR(CheckRange(names.prompt_logprobs,
                                     command.prompt_logprobs, -1, kMaxLogprobs,
                                     absl::StrCat("0 to ", kMaxLogprobs)));
  if (command.prompt_logprobs >= 0 && num_tokens > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        names.prompt_logprobs, " is ", command.prompt_logprobs,
        "; a prompt that continues a state has none, because the state's "
        "tokens are not computed again"));
  }
  if (num_tokens == 0 && limits.max_prompt_tokens > 0) {
    constexpr char kWhole[] =
        " tokens; this model looks at a prompt as a whole, and a step of this "
        "server has room for ";
    if (appended > limits.max_prompt_tokens) {
      return absl::InvalidArgumentError(absl::StrCat(
          append, " has ", appended, kWhole, limits.max_prompt_tokens,
          " (--max-chunk-tokens, --max-num-batched-tokens)"));
    }
    if (command.logits == LogitsMode::kAll &&
        appended > limits.max_prompt_logits) {
      return absl::InvalidArgumentError(absl::StrCat(
          append, " has ", appended, kWhole, limits.max_prompt_logits,
          " whose logits are all wanted"));
    }
    if (command.prompt_logprobs >= 0 && appended > limits.max_scored_prompt) {
      return absl::InvalidArgumentError(absl::StrCat(
          append, " has ", appended, kWhole, limits.max_scored_prompt, " with ",
          names.prompt_logprobs));
    }
  }
  const int64_t max = limits.max_model_len;
  const bool generates = command.generate > 0;
  if (appended > 0 && num_tokens + appended > max - (generates ? 1 : 0)) {
    const std::string beside =
        num_tokens > 0 ? absl::StrCat(" after the sequence's ", num_tokens)
                       : "";
    return absl::InvalidArgumentError(
        absl::StrCat(append, " has ", appended, " tokens", beside,
                     "; this server's max_model_len is ", max,
                     generates ? ", with at least one to generate" : ""));
  }
  // Written so that it cannot overflow.
  if (command.generate < 0 || command.generate > max - num_tokens - appended) {
    return absl::InvalidArgumentError(absl::StrCat(
        names.generate, " is ", command.generate, "; the sequence would reach ",
        num_tokens, " + ", appended, " + ", command.generate,
        " tokens (held, appended, to generate), and this server's "
        "max_model_len is ",
        max));
  }
  // After the lengths: a message may hold millions of ids.
  for (size_t i = 0; i < command.append.size(); ++i) {
    if (command.append[i] >= 0 && command.append[i] < limits.vocab_size) {
      continue;
    }
    return CheckToken(absl::StrCat(append, "[", i, "]"), command.append[i],
                      limits.vocab_size);
  }
  return absl::OkStatus();
}

}  // namespace recurve
