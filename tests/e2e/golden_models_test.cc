// Checkpoints of every family (tests/golden/models; RECURVE_GOLDEN_MODELS names
// another folder), through the server: the tokens by Generate, the logits by
// Decode.

#include <algorithm>
#include <cmath>
#include <string>

#include "engine/checkpoint/safetensors.h"
#include "tests/e2e/server_fixture.h"
#include "tests/testing/golden_sets.h"

namespace recurve {
namespace {

std::vector<uint32_t> Ids(const TensorView& view) {
  std::vector<uint32_t> ids;
  for (int64_t i = 0; i < view.num_elements(); ++i)
    ids.push_back(static_cast<uint32_t>(view.Element(i)));
  return ids;
}

// The rows behind each token that Decode generates greedily.
std::vector<std::vector<float>> DecodeRows(const TestServer& server,
                                           const std::vector<uint32_t>& prompt,
                                           uint32_t count) {
  const auto stub = v1::Inference::NewStub(server.Channel());
  grpc::ClientContext context;
  const auto stream = stub->Decode(&context);
  v1::DecodeRequest request;
  request.mutable_append_ids()->mutable_ids()->Add(prompt.begin(),
                                                   prompt.end());
  request.set_generate(count);
  request.set_logits(v1::LOGITS_MODE_NEXT);
  request.mutable_stopping()->set_ignore_eos(true);
  EXPECT_TRUE(stream->Write(request));
  std::vector<std::vector<float>> rows;
  v1::DecodeResponse response;
  while (stream->Read(&response)) {
    for (const v1::Logits& logits : response.logits())
      rows.emplace_back(logits.values().begin(), logits.values().end());
    if (response.done()) break;
  }
  stream->WritesDone();
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
  return rows;
}

class GoldenModelsTest : public testing::TestWithParam<std::string> {};

TEST_P(GoldenModelsTest, ThroughTheServer) {
  const std::string path = GoldenFolder() + "/" + GetParam();
  const auto expected = SafetensorsFile::Open(path + "/expected.safetensors");
  ASSERT_TRUE(expected.ok()) << expected.status();
  ServerOptions options = DemoOptions();
  options.model.path = path;
  options.engine.max_chunk_tokens = 50;  // of prompts up to 900 tokens
  TestServer server(options);
  const auto client = server.Connect();
  for (const auto& [key, prompt_ids] : expected->tensors()) {
    if (key.rfind("prompt_", 0) != 0) continue;
    SCOPED_TRACE(key);
    const std::string name = key.substr(7);
    const std::vector<uint32_t> prompt = Ids(prompt_ids);
    const std::vector<uint32_t> greedy =
        Ids(expected->tensors().at("greedy_" + name));
    const auto outcome = Generate(
        *client, GreedyRequest(prompt, static_cast<uint32_t>(greedy.size())));
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcome.generation.token_ids, greedy);

    const TensorView& rows = expected->tensors().at("logits_" + name);
    const auto got =
        DecodeRows(server, prompt, static_cast<uint32_t>(greedy.size()));
    ASSERT_EQ(got.size(), rows.shape[0]);
    double largest = 0;
    double worst = 0;
    for (int64_t r = 0; r < rows.shape[0]; ++r) {
      ASSERT_EQ(got[r].size(), rows.shape[1]);
      for (int64_t v = 0; v < rows.shape[1]; ++v) {
        const double golden = rows.Element(r * rows.shape[1] + v);
        largest = std::max(largest, std::abs(golden));
        worst =
            std::max(worst, std::abs(static_cast<double>(got[r][v]) - golden));
      }
    }
    EXPECT_LE(worst, 1e-3 * largest);
  }
  server.ExpectIdle();
}

INSTANTIATE_TEST_SUITE_P(Sets, GoldenModelsTest,
                         testing::ValuesIn(GoldenSets()), [](const auto& info) {
                           return GoldenTestName(info.param);
                         });

}  // namespace
}  // namespace recurve
