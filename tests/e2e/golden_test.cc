// The demo model's expected outputs, through the server.

#include <cmath>
#include <string>

#include "engine/checkpoint/safetensors.h"
#include "tests/e2e/server_fixture.h"

namespace recurve {
namespace {

// The reference rows were rounded to float16, at which a logit of 12 is 0.004
// off at the most; what remains is the difference of the arithmetic.
float HalfUlpOfFloat16(float value) {
  int exponent;
  std::frexp(value, &exponent);  // |value| in [2^(exponent - 1), 2^exponent)
  return std::ldexp(1.0f, exponent - 1 - 11);
}

class GoldenTest : public testing::TestWithParam<const char*> {
 protected:
  static TestServer& server() {
    static TestServer* const server = new TestServer;
    return *server;
  }

  void SetUp() override {
    auto file = SafetensorsFile::Open(
        RECURVE_SOURCE_DIR "/deploy/models/demo/expected.safetensors");
    ASSERT_TRUE(file.ok()) << file.status();
    file_.emplace(*std::move(file));
    const std::string name = GetParam();
    prompt_ = Ids("prompt_" + name);
    greedy_ = Ids("greedy_" + name);
    ASSERT_EQ(greedy_.size(), 160);
  }

  TensorView Tensor(const std::string& name) {
    const auto it = file_->tensors().find(name);
    EXPECT_NE(it, file_->tensors().end()) << name;
    return it->second;
  }

  std::vector<uint32_t> Ids(const std::string& name) {
    const TensorView view = Tensor(name);
    std::vector<uint32_t> ids;
    for (int64_t i = 0; i < view.num_elements(); ++i) {
      ids.push_back(static_cast<uint32_t>(view.Element(i)));
    }
    return ids;
  }

  std::optional<SafetensorsFile> file_;
  std::vector<uint32_t> prompt_;
  std::vector<uint32_t> greedy_;
};

TEST_P(GoldenTest, GenerateGivesTheGreedyIds) {
  const auto outcome =
      Generate(*server().Connect(), GreedyRequest(prompt_, 160));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.generation.token_ids, greedy_);
  EXPECT_EQ(outcome.generation.end.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(outcome.generation.end.usage().prompt_tokens(), prompt_.size());
  std::string text;
  for (uint32_t id : greedy_) text.push_back(static_cast<char>(id));
  EXPECT_EQ(outcome.generation.text, text);
}

TEST_P(GoldenTest, DecodeGivesTheLogits) {
  const auto stub = v1::Inference::NewStub(server().Channel());
  grpc::ClientContext context;
  const auto stream = stub->Decode(&context);
  v1::DecodeRequest request;
  request.mutable_append_ids()->mutable_ids()->Add(prompt_.begin(),
                                                   prompt_.end());
  request.set_generate(160);
  request.set_logits(v1::LOGITS_MODE_NEXT);
  request.mutable_stopping()->set_ignore_eos(true);
  ASSERT_TRUE(stream->Write(request));

  const TensorView expected = Tensor("logits_" + std::string(GetParam()));
  const int64_t vocab = expected.shape[1];
  std::vector<uint32_t> ids;
  int64_t row = 0;
  v1::DecodeResponse response;
  while (stream->Read(&response)) {
    for (uint32_t id : response.tokens().ids()) ids.push_back(id);
    for (const v1::Logits& logits : response.logits()) {
      ASSERT_EQ(logits.position(), prompt_.size() - 1 + row);
      ASSERT_EQ(logits.values_size(), vocab);
      for (int64_t i = 0; i < vocab; ++i) {
        const float reference = expected.Element(row * vocab + i);
        ASSERT_NEAR(logits.values(static_cast<int>(i)), reference,
                    HalfUlpOfFloat16(reference) + 2e-4)
            << "row " << row << " id " << i;
      }
      ++row;
    }
    if (response.done()) break;
  }
  EXPECT_EQ(row, 160);
  EXPECT_EQ(ids, greedy_);
  EXPECT_EQ(response.sequence_tokens(), prompt_.size() + 160);
  stream->WritesDone();
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
}

INSTANTIATE_TEST_SUITE_P(Prompts, GoldenTest,
                         testing::Values("def", "class", "import", "recall"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace recurve
