#include "engine/serving/request.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint_files.h"
#include "tests/testing/status_codes.h"

namespace recurve {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

constexpr RequestLimits kLimits = {
    /*vocab_size=*/100, /*max_model_len=*/1000, /*has_tokenizer=*/true};

absl::Status Check(const std::function<void(SequenceOptions&)>& change,
                   const RequestLimits& limits = kLimits) {
  SequenceOptions options;
  change(options);
  return ValidateOptions(options, limits);
}
absl::Status CheckSampling(const std::function<void(SamplingParams&)>& change) {
  return Check([&](SequenceOptions& options) { change(options.sampling); });
}
absl::Status CheckStopping(const std::function<void(StoppingParams&)>& change,
                           const RequestLimits& limits = kLimits) {
  return Check([&](SequenceOptions& options) { change(options.stopping); },
               limits);
}

TEST(RequestTest, DefaultsAreValid) {
  EXPECT_TRUE(ValidateOptions(SequenceOptions(), kLimits).ok());
}

// A field, the values at its limits, values outside, and how a message ends.
struct FieldCase {
  const char* field;
  float SamplingParams::*member;
  std::vector<float> good;
  std::vector<float> bad;
  const char* expected;
};

TEST(RequestTest, FloatFieldsHaveLimits) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const FieldCase cases[] = {{"sampling.temperature",
                              &SamplingParams::temperature,
                              {0, tiny, 100},
                              {-tiny, 100.1f, -1, kInf, -kInf, kNan},
                              "expected 0 to 100"},
                             {"sampling.repetition_penalty",
                              &SamplingParams::repetition_penalty,
                              {0.01f, 1, 10},
                              {0, tiny, -1, 10.1f, kInf, kNan},
                              "expected 0.01 to 10"},
                             {"sampling.presence_penalty",
                              &SamplingParams::presence_penalty,
                              {-2, 2},
                              {-2.1f, 2.1f, kInf, kNan},
                              "expected -2 to 2"},
                             {"sampling.frequency_penalty",
                              &SamplingParams::frequency_penalty,
                              {-2, 2},
                              {-2.1f, 2.1f, -kInf, kNan},
                              "expected -2 to 2"},
                             {"sampling.top_p",
                              &SamplingParams::top_p,
                              {tiny, 1},
                              {0, -1, 1.001f, kNan, kInf},
                              "expected above 0, at most 1"},
                             {"sampling.min_p",
                              &SamplingParams::min_p,
                              {0, 1},
                              {-tiny, 1.001f, kNan, kInf},
                              "expected 0 to 1"}};
  for (const FieldCase& c : cases) {
    for (float value : c.good) {
      const absl::Status status =
          CheckSampling([&](SamplingParams& s) { s.*c.member = value; });
      EXPECT_TRUE(status.ok()) << value << ": " << status;
    }
    for (float value : c.bad) {
      EXPECT_THAT(
          CheckSampling([&](SamplingParams& s) { s.*c.member = value; }),
          FailsWith(kInvalid, std::string(c.field) + " is ", c.expected))
          << value;
    }
  }
}

TEST(RequestTest, MessagesShowTheValue) {
  EXPECT_EQ(CheckSampling([](SamplingParams& s) { s.top_p = 1.5f; }).message(),
            "sampling.top_p is 1.5; expected above 0, at most 1");
  // No value within the limits is shown for one beyond them.
  EXPECT_EQ(
      CheckSampling([](SamplingParams& s) { s.top_p = 1.0000001f; }).message(),
      "sampling.top_p is 1.00000012; expected above 0, at most 1");
  EXPECT_THAT(CheckSampling([](SamplingParams& s) { s.min_p = kNan; }),
              FailsWith(kInvalid, "sampling.min_p is nan"));
}

TEST(RequestTest, TopKIsNotNegative) {
  const auto check = [](int32_t k) {
    return CheckSampling([=](SamplingParams& s) { s.top_k = k; });
  };
  EXPECT_TRUE(check(0).ok());
  EXPECT_TRUE(check(std::numeric_limits<int32_t>::max()).ok());
  EXPECT_THAT(check(-1), FailsWith(kInvalid, "sampling.top_k is -1"));
  EXPECT_THAT(check(std::numeric_limits<int32_t>::min()),
              FailsWith(kInvalid, "sampling.top_k"));
}

TEST(RequestTest, LogprobsHaveALimit) {
  const auto check = [](int32_t n) {
    return CheckSampling([=](SamplingParams& s) { s.num_logprobs = n; });
  };
  EXPECT_TRUE(check(-1).ok());  // none
  EXPECT_TRUE(check(kMaxLogprobs).ok());
  EXPECT_THAT(check(kMaxLogprobs + 1),
              FailsWith(kInvalid, "logprobs is 21; expected 0 to 20"));
  EXPECT_THAT(check(-2), FailsWith(kInvalid, "logprobs is -2"));
}

TEST(RequestTest, LogitBiasNamesTheIdAtFault) {
  const auto check = [](int32_t id, float bias) {
    return CheckSampling([=](SamplingParams& s) {
      s.logit_bias = {{5, 1.0f}, {id, bias}};
    });
  };
  EXPECT_TRUE(check(0, -100).ok());
  EXPECT_TRUE(check(99, 100).ok());
  EXPECT_THAT(check(100, 1), FailsWith(kInvalid, "sampling.logit_bias key",
                                       "is 100", "0 to 99"));
  EXPECT_THAT(check(-1, 1), FailsWith(kInvalid, "is -1"));
  EXPECT_THAT(check(7, 101), FailsWith(kInvalid, "sampling.logit_bias[7]",
                                       "101", "-100 to 100"));
  EXPECT_THAT(check(7, kNan), FailsWith(kInvalid, "sampling.logit_bias[7]"));
  const auto many = [](size_t count) {
    return CheckSampling([=](SamplingParams& s) {
      s.logit_bias.assign(count, {1, 1.0f});
    });
  };
  EXPECT_TRUE(many(kMaxLogitBias).ok());
  EXPECT_THAT(many(kMaxLogitBias + 1),
              FailsWith(kInvalid, "sampling.logit_bias", "1025", "1024"));
}

TEST(RequestTest, PriorityHasLimits) {
  const auto check = [](int32_t priority) {
    return Check([=](SequenceOptions& o) { o.priority = priority; });
  };
  EXPECT_TRUE(check(-kMaxPriority).ok());
  EXPECT_TRUE(check(kMaxPriority).ok());
  EXPECT_THAT(check(kMaxPriority + 1),
              FailsWith(kInvalid, "priority is 101", "-100 to 100"));
  EXPECT_THAT(check(std::numeric_limits<int32_t>::min()),
              FailsWith(kInvalid, "priority is -2"));
}

TEST(RequestTest, StopTokensAreInTheVocabulary) {
  const auto check = [](std::vector<int32_t> ids) {
    return CheckStopping(
        [&](StoppingParams& s) { s.stop_token_ids = std::move(ids); });
  };
  EXPECT_TRUE(check({0, 99}).ok());
  EXPECT_THAT(check({0, 100}),
              FailsWith(kInvalid, "stopping.stop_token_ids[1] is 100"));
  EXPECT_THAT(check({-1}),
              FailsWith(kInvalid, "stopping.stop_token_ids[0] is -1"));
  EXPECT_TRUE(check(std::vector<int32_t>(kMaxStopTokenIds, 1)).ok());
  EXPECT_THAT(check(std::vector<int32_t>(kMaxStopTokenIds + 1, 1)),
              FailsWith(kInvalid, "stopping.stop_token_ids", "65", "64"));
}

TEST(RequestTest, StopStringsHaveLimits) {
  const auto check = [](std::vector<std::string> strings) {
    return CheckStopping(
        [&](StoppingParams& s) { s.stop_strings = std::move(strings); });
  };
  EXPECT_TRUE(check({"a", std::string(kMaxStopStringBytes, 'b')}).ok());
  EXPECT_THAT(check({"a", ""}),
              FailsWith(kInvalid, "stopping.stop_strings[1] has 0 bytes"));
  EXPECT_THAT(check({std::string(kMaxStopStringBytes + 1, 'b')}),
              FailsWith(kInvalid, "stopping.stop_strings[0] has 257", "256"));
  EXPECT_THAT(check(std::vector<std::string>(kMaxStopStrings + 1, "a")),
              FailsWith(kInvalid, "stopping.stop_strings", "17", "16"));
}

TEST(RequestTest, StopStringsNeedATokenizer) {
  RequestLimits limits = kLimits;
  limits.has_tokenizer = false;
  EXPECT_THAT(
      CheckStopping([](StoppingParams& s) { s.stop_strings = {"a"}; }, limits),
      FailsWith(kInvalid, "stopping.stop_strings", "tokenizer"));
  EXPECT_TRUE(CheckStopping([](StoppingParams&) {}, limits).ok());
}

TEST(RequestTest, AppendedTokensAreInTheVocabulary) {
  const auto check = [](std::vector<int32_t> append) {
    return ValidateCommand({std::move(append), 1, LogitsMode::kNone}, 0,
                           kLimits, "append_ids", {});
  };
  EXPECT_TRUE(check({0, 99}).ok());
  EXPECT_THAT(check({0, 1, 100}),
              FailsWith(kInvalid, "append_ids[2] is 100", "0 to 99"));
  EXPECT_THAT(check({-7}), FailsWith(kInvalid, "append_ids[0] is -7"));
}

TEST(RequestTest, ASequenceFitsTheServer) {
  const auto check = [](size_t append, int64_t generate, int64_t held) {
    return ValidateCommand(
        {std::vector<int32_t>(append, 1), generate, LogitsMode::kNone}, held,
        kLimits, "prompt", {});
  };
  EXPECT_TRUE(check(1000, 0, 0).ok());
  EXPECT_TRUE(check(1, 999, 0).ok());
  EXPECT_TRUE(check(0, 1, 999).ok());
  EXPECT_THAT(
      check(2, 999, 0),
      FailsWith(kInvalid,
                "max_new_tokens is 999; the sequence would reach 0 + 2 + 999",
                "max_model_len is 1000"));
  EXPECT_THAT(check(1000, 1, 0),
              FailsWith(kInvalid, "prompt has 1000 tokens",
                        "max_model_len is 1000, with at least one"));
  EXPECT_THAT(check(1001, 0, 0), FailsWith(kInvalid, "prompt has 1001 tokens",
                                           "max_model_len is 1000"));
  EXPECT_THAT(check(600, 5, 401),
              FailsWith(kInvalid, "prompt has 600 tokens",
                        "after the sequence's 401", "max_model_len is 1000"));
  EXPECT_THAT(check(0, 1, 1000), FailsWith(kInvalid, "1000 + 0 + 1"));
  EXPECT_THAT(check(1, -1, 0), FailsWith(kInvalid, "-1"));
  // Sums that would overflow.
  EXPECT_THAT(check(1, std::numeric_limits<int64_t>::max(), 998),
              FailsWith(kInvalid, "9223372036854775807"));
  EXPECT_THAT(check(1, std::numeric_limits<int64_t>::min(), 0),
              FailsWith(kInvalid, "-9223372036854775808"));
}

TEST(RequestTest, AWholePromptFitsAStep) {
  RequestLimits limits = kLimits;
  limits.max_prompt_tokens = 50;
  limits.max_prompt_logits = 20;
  const auto check = [&](size_t append, int64_t held, LogitsMode logits) {
    return ValidateCommand({std::vector<int32_t>(append, 1), 1, logits}, held,
                           limits, "prompt_ids", {});
  };
  EXPECT_TRUE(check(50, 0, LogitsMode::kNext).ok());
  EXPECT_THAT(check(51, 0, LogitsMode::kNone),
              FailsWith(kInvalid, "prompt_ids has 51 tokens", "as a whole",
                        "room for 50", "--max-chunk-tokens"));
  EXPECT_TRUE(check(20, 0, LogitsMode::kAll).ok());
  EXPECT_THAT(
      check(21, 0, LogitsMode::kAll),
      FailsWith(kInvalid, "prompt_ids has 21 tokens", "room for 20", "logits"));
  // Later tokens may be split over steps.
  EXPECT_TRUE(check(51, 1, LogitsMode::kAll).ok());
}

TEST(RequestTest, PlacesOfSnapshotsAreInThePrompt) {
  const auto check = [](std::vector<int64_t> places) {
    SequenceOptions options;
    options.snapshot_at = std::move(places);
    return ValidateSnapshots(options, 100, {});
  };
  EXPECT_TRUE(check({}).ok());
  EXPECT_TRUE(check({100, 1, 50, 50}).ok());
  EXPECT_THAT(check({1, 2, 3, 4, 5}),
              FailsWith(kInvalid, "snapshot_at has 5 entries", "at most 4"));
  EXPECT_THAT(check({1, 101}), FailsWith(kInvalid, "snapshot_at[1] is 101",
                                         "1 to the prompt's 100 tokens"));
  EXPECT_THAT(check({0}), FailsWith(kInvalid, "snapshot_at[0] is 0"));
}

TEST(RequestTest, RollbacksNameAKeptPoint) {
  const std::vector<int64_t> kept = {10, 40, 90};
  EXPECT_TRUE(ValidateKept(std::nullopt, true, {}).ok());
  EXPECT_TRUE(ValidateKept(40, true, kept).ok());
  const auto range = absl::StatusCode::kOutOfRange;
  EXPECT_THAT(ValidateKept(5, false, {}),
              FailsWith(range, "rollback_to is 5", "no earlier command"));
  EXPECT_THAT(ValidateKept(60, false, kept),
              FailsWith(range, "rollback_to is 60", "nearest", "40"));
  EXPECT_THAT(ValidateKept(std::numeric_limits<int64_t>::max(), false, kept),
              FailsWith(range, "nearest", "90"));
  const std::vector<int64_t> full = {1, 2,  3,  4,  5,  6,  7,  8,
                                     9, 10, 11, 12, 13, 14, 15, 16};
  EXPECT_THAT(ValidateKept(std::nullopt, true, full),
              FailsWith(absl::StatusCode::kResourceExhausted, "keeps 16 points",
                        "at most 16"));
  EXPECT_TRUE(ValidateKept(15, true, full).ok());
  EXPECT_FALSE(ValidateKept(16, true, full).ok());
}

TEST(RequestTest, ACommandDoesSomething) {
  EXPECT_THAT(ValidateCommand({}, 10, kLimits, "append_ids", {}),
              FailsWith(kInvalid, "append_ids is empty"));
}

}  // namespace
}  // namespace recurve
