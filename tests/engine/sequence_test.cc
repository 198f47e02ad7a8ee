#include "engine/serving/sequence.h"

#include <memory>
#include <string>
#include <vector>

#include "engine/tokenizer/bytes_tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/tokenizer_files.h"
#include "tests/testing/recording_sink.h"

namespace recurve {
namespace {

using testing::ElementsAre;

class SequenceTest : public testing::Test {
 protected:
  SequenceTest() : tokenizer_(*BytesTokenizer::Make(258, 256, 257)) {}

  std::unique_ptr<Sequence> Make(bool close_when_done = true) {
    return std::make_unique<Sequence>(
        1, 1, options_, close_when_done, tokenizer_.get(),
        std::vector<int32_t>{257}, std::make_shared<RecordingSink>(),
        Clock::now());
  }
  static void Compute(Sequence& sequence, int64_t count, bool sampled = false) {
    sequence.Launched(count, sampled ? 0 : -1);
    sequence.Advance(count, sampled);
  }
  // Computes all known tokens, as the engine does, and accepts `token`.
  static StepEvent Accept(Sequence& sequence, int32_t token) {
    EXPECT_TRUE(sequence.WillSample(sequence.num_tokens()));
    Compute(sequence, sequence.num_tokens() - sequence.num_computed(), true);
    StepEvent event;
    sequence.AcceptToken({token, -1.5f, {}}, &event);
    return event;
  }

  SequenceOptions options_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(SequenceTest, RunsOneCommandToItsLength) {
  const auto sequence = Make();
  EXPECT_FALSE(sequence->StartNextCommand());
  sequence->Enqueue({{1, 2, 3}, 2, LogitsMode::kNone});
  EXPECT_FALSE(sequence->finished());
  EXPECT_TRUE(sequence->StartNextCommand());
  EXPECT_TRUE(sequence->command_active());
  EXPECT_EQ(sequence->num_tokens(), 3);
  EXPECT_FALSE(sequence->WillSample(2));
  EXPECT_TRUE(sequence->WillSample(3));
  const StepEvent event = Accept(*sequence, 'a');
  EXPECT_TRUE(event.has_token);
  EXPECT_EQ(event.index, 0);
  EXPECT_EQ(event.token, 'a');
  EXPECT_EQ(event.text, "a");
  EXPECT_EQ(event.logprob, -1.5f);
  EXPECT_FALSE(sequence->CommandComplete());
  EXPECT_EQ(Accept(*sequence, 'b').index, 1);
  // The last token is known and need not be computed.
  EXPECT_EQ(sequence->num_computed(), 4);
  EXPECT_TRUE(sequence->CommandComplete());
  const CommandResult result = sequence->FinishCommand(Clock::now());
  EXPECT_EQ(result.reason, FinishReason::kLength);
  EXPECT_EQ(result.sequence_tokens, 5);
  EXPECT_TRUE(sequence->finished());
}

TEST_F(SequenceTest, AppendOnlyIsCompleteWhenComputed) {
  const auto sequence = Make(/*close_when_done=*/false);
  sequence->Enqueue({{1, 2, 3}, 0, LogitsMode::kNone});
  sequence->StartNextCommand();
  EXPECT_FALSE(sequence->WillSample(3));
  Compute(*sequence, 2);
  EXPECT_FALSE(sequence->CommandComplete());
  Compute(*sequence, 1);
  EXPECT_TRUE(sequence->CommandComplete());
  sequence->FinishCommand(Clock::now());
  EXPECT_FALSE(sequence->finished());
  sequence->CloseAfterLastCommand();
  EXPECT_TRUE(sequence->finished());
}

TEST_F(SequenceTest, GeneratingAfterAppendOnlyComputesAnew) {
  const auto sequence = Make(/*close_when_done=*/false);
  sequence->Enqueue({{1, 2, 3}, 0, LogitsMode::kNone});
  sequence->Enqueue({{}, 1, LogitsMode::kNext});
  sequence->StartNextCommand();
  Compute(*sequence, 3);
  sequence->FinishCommand(Clock::now());
  EXPECT_TRUE(sequence->StartNextCommand());
  EXPECT_EQ(sequence->num_computed(), 0);
  EXPECT_FALSE(sequence->WantsLogits(1));
  EXPECT_TRUE(sequence->WantsLogits(2));
  Accept(*sequence, 'a');
  EXPECT_EQ(sequence->FinishCommand(Clock::now()).preemptions, 0);
}

TEST_F(SequenceTest, ASecondStepGoesOnFromWhatIsInFlight) {
  const auto sequence = Make();
  sequence->Enqueue({{1, 2, 3}, 3, LogitsMode::kNone});
  sequence->StartNextCommand();
  sequence->Launched(2, -1);
  EXPECT_TRUE(sequence->HasWork());
  EXPECT_TRUE(sequence->WillSample(3));
  sequence->Launched(1, 5);  // the first token
  EXPECT_EQ(sequence->num_computed(), 0);
  EXPECT_EQ(sequence->launched_computed(), 3);
  EXPECT_EQ(sequence->launched_tokens(), 4);
  EXPECT_EQ(sequence->sample_in_flight(), 5);
  EXPECT_TRUE(sequence->HasWork());
  EXPECT_FALSE(sequence->MustWait());
  EXPECT_EQ(sequence->MakeSampleRequest(0).index, 1u);
  sequence->Advance(2, false);
  sequence->Launched(1, 6);  // the second
  EXPECT_EQ(sequence->MakeSampleRequest(0).index, 2u);
  EXPECT_TRUE(sequence->WillSample(5));
  StepEvent event;
  sequence->Advance(1, true);
  sequence->AcceptToken({'a', 0, {}}, &event);
  sequence->Launched(1, 7);  // the last, which nothing follows
  EXPECT_FALSE(sequence->HasWork());
  EXPECT_FALSE(sequence->WillSample(6));
  for (char token : {'b', 'c'}) {
    sequence->Advance(1, true);
    sequence->AcceptToken({token, 0, {}}, &event);
  }
  EXPECT_FALSE(sequence->in_flight());
  EXPECT_TRUE(sequence->CommandComplete());
}

TEST_F(SequenceTest, WhatMayGoOnWaitsForItsToken) {
  const auto open = Make(/*close_when_done=*/false);
  open->Enqueue({{1, 2, 3}, 2, LogitsMode::kNone});
  open->StartNextCommand();
  EXPECT_FALSE(open->MustWait());
  open->Launched(3, 0);
  EXPECT_TRUE(open->MustWait());
  open->CloseAfterLastCommand();
  EXPECT_FALSE(open->MustWait());
  open->Enqueue({{4}, 1, LogitsMode::kNone});
  EXPECT_TRUE(open->MustWait());
  open->Launched(1, 0);  // it ends the command whatever it is
  EXPECT_FALSE(open->MustWait());
}

TEST_F(SequenceTest, PenaltiesSeePromptAndOutputApart) {
  const auto sequence = Make();
  sequence->Enqueue({{1, 2}, 3, LogitsMode::kNone});
  sequence->StartNextCommand();
  Accept(*sequence, 7);
  const SampleRequest request = sequence->MakeSampleRequest(4);
  EXPECT_EQ(request.logit_index, 4);
  EXPECT_THAT(request.prompt, ElementsAre(1, 2));
  EXPECT_THAT(request.output, ElementsAre(7));
  EXPECT_EQ(request.index, 1u);
}

TEST_F(SequenceTest, PreemptionForgetsNothingButTheCache) {
  const auto sequence = Make();
  sequence->Enqueue({{1, 2, 3}, 3, LogitsMode::kAll});
  sequence->StartNextCommand();
  for (int64_t position = 0; position < 3; ++position)
    sequence->LogitsEmitted(position);
  Accept(*sequence, 'a');
  sequence->Preempt({});
  EXPECT_EQ(sequence->num_computed(), 0);
  EXPECT_THAT(sequence->tokens(), ElementsAre(1, 2, 3, 'a'));
  EXPECT_FALSE(sequence->WantsLogits(2));  // a client has it already
  EXPECT_TRUE(sequence->WantsLogits(3));
  Accept(*sequence, 'b');
  Accept(*sequence, 'c');
  EXPECT_EQ(sequence->FinishCommand(Clock::now()).preemptions, 1);
}

TEST_F(SequenceTest, StopReasonsHaveAnOrder) {
  options_.stopping.stop_token_ids = {'t', 257};
  options_.stopping.stop_strings = {"ut"};
  const auto reason = [&](std::vector<int32_t> tokens, int64_t generate) {
    const auto sequence = Make();
    sequence->Enqueue({{1}, generate, LogitsMode::kNone});
    sequence->StartNextCommand();
    for (int32_t token : tokens) Accept(*sequence, token);
    EXPECT_TRUE(sequence->CommandComplete());
    return sequence->FinishCommand(Clock::now()).reason;
  };
  EXPECT_EQ(reason({257}, 1), FinishReason::kEos);
  EXPECT_EQ(reason({'u', 't'}, 2), FinishReason::kStopToken);
  EXPECT_EQ(reason({'x', 'y'}, 2), FinishReason::kLength);
  options_.stopping.ignore_eos = true;
  EXPECT_EQ(reason({257}, 9), FinishReason::kStopToken);
  options_.stopping.stop_token_ids.clear();
  EXPECT_EQ(reason({257, 'u', 't'}, 9), FinishReason::kStopString);
}

TEST_F(SequenceTest, TheFirstTokensEndNothing) {
  options_.stopping.stop_token_ids = {'t'};
  options_.stopping.stop_strings = {"ut"};
  options_.stopping.min_tokens = 3;
  const auto sequence = Make();
  sequence->Enqueue({{1}, 20, LogitsMode::kNone});
  sequence->StartNextCommand();
  const SamplingParams& sampling = *sequence->MakeSampleRequest(0).params;
  EXPECT_EQ(sampling.min_tokens, 3);
  EXPECT_THAT(sampling.masked, ElementsAre('t', 257));
  // They are never drawn there, but the order of conditions is the same.
  Accept(*sequence, 't');
  Accept(*sequence, 'u');
  Accept(*sequence, 257);
  EXPECT_FALSE(sequence->CommandComplete());
  Accept(*sequence, 'u');
  EXPECT_FALSE(sequence->CommandComplete());
  Accept(*sequence, 't');
  EXPECT_TRUE(sequence->CommandComplete());
  EXPECT_EQ(sequence->FinishCommand(Clock::now()).reason,
            FinishReason::kStopToken);
}

TEST_F(SequenceTest, AWholePromptIsWhatTheFirstCommandAppends) {
  for (bool whole : {false, true}) {
    const auto sequence = Make(/*close_when_done=*/false);
    if (whole) sequence->ComputePromptWhole();
    EXPECT_EQ(sequence->whole_tokens(), 0);
    sequence->Enqueue({{1, 2, 3}, 1, LogitsMode::kNone});
    sequence->Enqueue({{4, 5}, 1, LogitsMode::kNone});
    sequence->StartNextCommand();
    Accept(*sequence, 'a');
    sequence->FinishCommand(Clock::now());
    sequence->StartNextCommand();
    EXPECT_EQ(sequence->whole_tokens(), whole ? 3 : 0);
    // However few they are, they are a prompt.
    const auto first = whole ? TokenKind::kShortPromptStart : TokenKind::kStep;
    const auto next = whole ? TokenKind::kShortPrompt : TokenKind::kStep;
    EXPECT_EQ(sequence->kind(0), first);
    EXPECT_EQ(sequence->kind(1), next);
    EXPECT_EQ(sequence->kind(2), next);
    for (int64_t i = 3; i < 6; ++i)
      EXPECT_EQ(sequence->kind(i), TokenKind::kStep);
    sequence->Preempt({});
    EXPECT_EQ(sequence->whole_tokens(), whole ? 3 : 0);
  }
}

TEST_F(SequenceTest, KnowsWhereTheLastPromptBeforeATokenEnded) {
  const auto sequence = Make(/*close_when_done=*/false);
  const std::vector<int32_t> prompt(kMinPromptTokens, 1);
  sequence->Enqueue({{1, 2, 3}, 1, LogitsMode::kNone});  // too few
  sequence->Enqueue({prompt, 1, LogitsMode::kNone});
  sequence->Enqueue({prompt, 1, LogitsMode::kNone});
  for (int i = 0; i < 3; ++i) {
    sequence->StartNextCommand();
    Accept(*sequence, 'a');
    sequence->FinishCommand(Clock::now());
  }
  // 3 and 1 tokens of steps, 32 of a prompt, 1, 32, 1.
  EXPECT_EQ(sequence->prompt_end(0), 0);
  EXPECT_EQ(sequence->prompt_end(4), 0);
  EXPECT_EQ(sequence->prompt_end(5), 5);
  EXPECT_EQ(sequence->prompt_end(20), 20);
  EXPECT_EQ(sequence->prompt_end(36), 36);
  EXPECT_EQ(sequence->prompt_end(37), 36);
  EXPECT_EQ(sequence->prompt_end(38), 38);
  EXPECT_EQ(sequence->prompt_end(69), 69);
  EXPECT_EQ(sequence->prompt_end(70), 69);
}

TEST_F(SequenceTest, FlushingMayCompleteAStopString) {
  // "ab" waits while "xab!", which began before it, may still come.
  options_.stopping.stop_strings = {"xab!", "ab"};
  const auto sequence = Make();
  sequence->Enqueue({{1}, 3, LogitsMode::kNone});
  sequence->StartNextCommand();
  std::string text;
  for (char c : std::string("xab")) text += Accept(*sequence, c).text;
  const CommandResult result = sequence->FinishCommand(Clock::now());
  EXPECT_EQ(result.reason, FinishReason::kStopString);
  EXPECT_EQ(result.stop_string, "ab");
  EXPECT_EQ(text + result.text, "x");
}

TEST_F(SequenceTest, ACharacterMaySpanCommands) {
  const auto sequence = Make(/*close_when_done=*/false);
  sequence->Enqueue({{1}, 1, LogitsMode::kNone});
  sequence->Enqueue({{}, 1, LogitsMode::kNone});
  sequence->StartNextCommand();
  EXPECT_EQ(Accept(*sequence, 0xc3).text, "");
  EXPECT_EQ(sequence->FinishCommand(Clock::now()).text, "");
  sequence->StartNextCommand();
  EXPECT_EQ(Accept(*sequence, 0xa9).text, "\u00e9");
}

// With SentencePiece the first token with text loses its leading space: the
// prompt's, and a generated one only if the prompt has none.
TEST_F(SequenceTest, TextGoesOnFromThePrompt) {
  tokenizer_ = LoadGolden("sentencepiece_bpe", "sentencepiece");
  const std::vector<int32_t> the = *tokenizer_->Encode("the", false);
  ASSERT_EQ(tokenizer_->TokenBytes(the[0]).substr(0, 1), " ");
  constexpr int32_t kBos = 1;
  ASSERT_EQ(tokenizer_->TokenBytes(kBos), "");
  const auto text_after = [&](std::vector<int32_t> prompt) {
    const auto sequence = Make(/*close_when_done=*/false);
    sequence->Enqueue({std::move(prompt), 1, LogitsMode::kNone});
    // Neither does a second command begin the text.
    sequence->Enqueue({{kBos}, 1, LogitsMode::kNone});
    sequence->StartNextCommand();
    std::string text = Accept(*sequence, the[0]).text;
    sequence->FinishCommand(Clock::now());
    sequence->StartNextCommand();
    return text + Accept(*sequence, the[0]).text;
  };
  const std::string piece(tokenizer_->TokenBytes(the[0]));
  EXPECT_EQ(text_after({kBos, the[0]}), piece + piece);
  EXPECT_EQ(text_after({kBos}), piece.substr(1) + piece);
}

TEST_F(SequenceTest, AppendingEndsAnUnfinishedCharacter) {
  const auto sequence = Make(/*close_when_done=*/false);
  sequence->Enqueue({{1}, 1, LogitsMode::kNone});
  sequence->Enqueue({{'x'}, 1, LogitsMode::kNone});
  sequence->StartNextCommand();
  EXPECT_EQ(Accept(*sequence, 0xc3).text, "");
  sequence->FinishCommand(Clock::now());
  sequence->StartNextCommand();
  EXPECT_EQ(Accept(*sequence, 'y').text, "\ufffdy");
}

}  // namespace
}  // namespace recurve
