#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/vllm/model_files.h"
#include "server/vllm/open_requests.h"
#include "server/vllm/throughput.h"
#include "server/vllm/zip_archive.h"

namespace recurve {
namespace {

using std::chrono::milliseconds;

TEST(ZipArchiveTest, Checksum) {
  EXPECT_EQ(Crc32(""), 0u);
  EXPECT_EQ(Crc32("123456789"), 0xcbf43926u);
}

// smg_test.py unpacks one; here, that its bytes are those of the format.
TEST(ZipArchiveTest, EmptyAndOneFile) {
  EXPECT_EQ(ZipOf({}), std::string("PK\x05\x06") + std::string(18, '\0'));
  const std::string zip = ZipOf({{"a", "bc"}});
  EXPECT_EQ(zip.size(), (30u + 1 + 2) + (46 + 1) + 22);
  EXPECT_EQ(zip.substr(30, 3), "abc");
  EXPECT_EQ(zip.substr(33, 4), "PK\x01\x02");
}

TEST(ThroughputTest, IsThatBetweenReadingsASecondApart) {
  Throughput throughput;
  const Throughput::Clock::time_point start;
  EXPECT_EQ(throughput.Read(100, start), 0);
  EXPECT_EQ(throughput.Read(150, start + milliseconds(500)), 0);
  EXPECT_EQ(throughput.Read(300, start + milliseconds(2000)), 100);
  EXPECT_EQ(throughput.Read(999, start + milliseconds(2999)), 100);
  EXPECT_EQ(throughput.Read(300, start + milliseconds(3000)), 0);
}

class ModelFilesTest : public testing::Test {
 protected:
  ModelFilesTest() { std::filesystem::create_directory(folder_); }
  ~ModelFilesTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name) << text;
  }

  const std::string folder_ =
      testing::TempDir() + "/model_files_" + std::to_string(getpid());
};

TEST_F(ModelFilesTest, WithoutATokenizer) {
  Write("config.json", R"({"model_type": 3, "architectures": "a"})");
  Write("chat_template.jinja", "x");
  const ModelFiles files = ReadModelFiles(folder_);
  EXPECT_EQ(files.tokenizer.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(files.model_type, "");
  EXPECT_TRUE(files.architectures.empty());
  EXPECT_FALSE(files.pad_token_id.has_value());
  EXPECT_EQ(ReadModelFiles(folder_ + "/none").tokenizer.status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(ModelFilesTest, ArchivesWhatTokenizersNeedAndNothingElse) {
  Write(
      "config.json",
      R"({"model_type": "m", "architectures": ["A", "B"], "pad_token_id": 7})");
  Write("tokenizer.model", "t");
  Write("chat_template.jinja", "");
  Write("model.safetensors", "weights");
  Write("secret.txt", "no");
  std::filesystem::create_directory(folder_ + "/tokenizer.json");
  const ModelFiles files = ReadModelFiles(folder_);
  ASSERT_TRUE(files.tokenizer.ok()) << files.tokenizer.status();
  const std::string config =
      R"({"model_type": "m", "architectures": ["A", "B"], "pad_token_id": 7})";
  EXPECT_EQ((*files.tokenizer)->zip, ZipOf({{"chat_template.jinja", ""},
                                            {"config.json", config},
                                            {"tokenizer.model", "t"}}));
  EXPECT_EQ((*files.tokenizer)->sha256.size(), 64u);
  EXPECT_EQ(files.model_type, "m");
  EXPECT_THAT(files.architectures, testing::ElementsAre("A", "B"));
  EXPECT_EQ(files.pad_token_id, 7);
}

// Records how it ends.
class RecordingStream : public RpcStream {
 public:
  void Read(milliseconds) override {}
  void SendHead(RpcMetadata) override {}
  void Write(const std::string&) override {}
  void Finish(absl::Status status, RpcMetadata) override { end = status; }
  void Break() override {}
  void Trust() override {}
  void Accept() override {}
  void Rest() override {}

  absl::Status end;
};

TEST(OpenRequestsTest, AbortEndsThoseOfTheFlowAndTheId) {
  OpenRequests requests;
  EXPECT_EQ(requests.last_seconds(), 0);
  std::vector<std::shared_ptr<RecordingStream>> streams(5);
  for (auto& stream : streams) stream = std::make_shared<RecordingStream>();
  requests.Add(1, "a", streams[0]);
  requests.Add(1, "a", streams[1]);
  requests.Add(2, "a", streams[2]);
  requests.Add(1, "b", streams[3]);
  requests.Add(1, "", streams[4]);
  EXPECT_GT(requests.last_seconds(), 0);
  requests.Remove(1, "a", streams[1].get());
  requests.Remove(1, "c", streams[3].get());
  requests.Abort(1, "a");
  requests.Abort(1, "");
  EXPECT_TRUE(absl::IsCancelled(streams[0]->end));
  for (const int other : {1, 2, 3, 4}) {
    EXPECT_TRUE(streams[other]->end.ok()) << other;
  }
}

}  // namespace
}  // namespace recurve
