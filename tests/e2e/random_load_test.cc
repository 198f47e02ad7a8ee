// Random load with faults against a server process that is too small for it:
// clients that finish, cancel, disconnect, read slowly, send invalid requests,
// or return with a second turn. Completed requests have the same tokens as
// alone. Between rounds, and at the end, everything is released: streams,
// slots, pages, host and device memory, descriptors, threads; and the process
// has not grown.
//
// RECURVE_LOAD_SECONDS sets the duration (default 8, in four rounds; 2 with a
// sanitizer); RECURVE_TEST_DEVICE=cuda loads a GPU, which no other process may
// use meanwhile: the test checks its total used memory.

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/e2e/server_fixture.h"
#include "tests/testing/direct_channel.h"
#include "tests/testing/http_client.h"
#include "tests/testing/process.h"
#include "tests/testing/program_paths.h"
#include "tests/testing/test_random.h"

namespace recurve {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr int kClients = 16;
constexpr int kPrompts = 24;  // different requests
constexpr char kPath[] = "/v1/completions";

v1::GenerateRequest RequestOf(int index) {
  TestRandom random(static_cast<uint64_t>(index) + 1);
  v1::GenerateRequest request =
      GreedyRequest(RandomPrompt(index, random.Uniform(1, 480)),
                    static_cast<uint32_t>(random.Uniform(1, 80)));
  request.mutable_sampling()->set_seed(index);
  if (random.Chance(0.5)) {
    request.mutable_sampling()->set_temperature(0.9f);
    request.mutable_sampling()->set_top_p(0.95f);
  }
  return request;
}

// What a client may be up to, and how often it was.
enum Act {
  kFinish,
  kSecondTurn,
  kCancel,
  kDeadline,
  kSlowReader,
  kLeaveGrpc,
  kLeaveHttp,
  kHttp,
  kBadRequest,
  kActs
};
constexpr const char* kActNames[kActs] = {
    "finish",      "second turn", "cancel", "deadline",   "slow reader",
    "leave, gRPC", "leave, HTTP", "HTTP",   "bad request"};
constexpr const char* kCounters[] = {
    "recurve_num_preemptions_total", "recurve_preemption_saves_total",
    "recurve_preemption_restores_total", "recurve_preemption_recomputes_total"};
// Percentages.
constexpr int kShares[kActs] = {40, 10, 14, 6, 5, 5, 6, 6, 8};

struct Footprint {
  int64_t memory = 0;       // resident bytes of the process
  int64_t device = 0;       // MiB used on the GPU; 0 on the CPU
  int64_t descriptors = 0;  // open files
  int64_t threads = 0;
};

class RandomLoadTest : public testing::Test {
 protected:
  RandomLoadTest() {
    const char* asan = std::getenv("ASAN_OPTIONS");
    server_ = std::make_unique<Process>(
        std::vector<std::string>{
            TestProgram("recurve-server"), "--model", DemoModelFolder(),
            "--device", TestDeviceFlag(), "--grpc-port", "0", "--http-port",
            "0", "--num-threads", "1", "--max-num-seqs", "7",
            "--max-num-batched-tokens", "160", "--max-chunk-tokens", "96",
            "--max-model-len", "1024", "--kv-pages", "22", "--swap-bytes",
            // Few are preempted in the seconds of a slow server: the second to
            // be saved finds no room.
            Sanitized() ? "1200000" : "3000000",
            // Whose memory they would take, too.
            "--prefix-cache-bytes", "0",
            // The pacer goes by the clock: where a sanitizer makes a chunk cost
            // more than all it saves up, hardly two sequences run at a time,
            // and none presses another out.
            "--max-decode-slowdown", Sanitized() ? "0" : "2",
            // A busy machine starves honest clients too.
            "--stalled-client-timeout", "10", "--max-buffered-tokens", "8"},
        // As in hostile_test.cc: allocators that keep memory look like leaks.
        std::vector<std::string>{
            absl::StrCat(
                "ASAN_OPTIONS=", asan != nullptr ? asan : "",
                ":quarantine_size_mb=4:thread_local_quarantine_size_kb=64"),
            "MALLOC_ARENA_MAX=2"});
    address_ = server_->GrpcAddress();
    http_port_ = PortOf(server_->Address("http"));
    grpc_port_ = PortOf(address_);
  }

  static int PortOf(const std::string& address) {
    return std::atoi(address.substr(address.find(':') + 1).c_str());
  }
  std::unique_ptr<RecurveClient> Connect() const {
    ClientOptions options;
    options.own_connection = true;
    return *RecurveClient::Create(address_, options);
  }
  std::shared_ptr<grpc::Channel> Channel() const {
    grpc::ChannelArguments arguments = DirectArguments();
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 16384);
    return DirectChannel(address_, arguments);
  }

  // A client's next act, with a client whose connection lasts.
  void Act(RecurveClient& client, TestRandom& random, int act);
  void Finish(RecurveClient& client, TestRandom& random, int act);
  std::vector<uint32_t> TwoTurns(uint64_t which,
                                 std::chrono::milliseconds rest);
  void SlowReader(TestRandom& random);
  void LeaveGrpc(TestRandom& random);
  void Http(TestRandom& random, int act);
  void BadRequest(RecurveClient& client, TestRandom& random);

  void Round(int round, SteadyClock::time_point until);
  // Waits until nothing is left of the load, and measures.
  Footprint AtRest();
  // Whether clients and server have done everything that is to be tested.
  bool AllHappened() const {
    return std::all_of(acts_.begin(), acts_.end(),
                       [](const auto& count) { return count > 0; }) &&
           std::all_of(std::begin(kCounters), std::end(kCounters),
                       [&](const char* name) { return Metric(name) > 0; });
  }
  double Metric(const std::string& name) const {
    return MetricValue(http_port_, name);
  }

  std::unique_ptr<Process> server_;
  std::string address_;
  int http_port_ = 0;
  int grpc_port_ = 0;
  std::vector<std::vector<uint32_t>> expected_;   // tokens of each request
  std::vector<std::vector<uint32_t>> two_turns_;  // of TwoTurns
  std::array<std::atomic<int64_t>, kActs> acts_ = {};
};

// --- What clients do ---

void RandomLoadTest::Finish(RecurveClient& client, TestRandom& random,
                            int act) {
  const int index = static_cast<int>(random.Uniform(0, kPrompts - 1));
  v1::GenerateRequest request = RequestOf(index);
  request.set_priority(static_cast<int32_t>(random.Uniform(-2, 2)));
  CallOptions options;
  if (act == kDeadline)
    options.timeout = absl::Milliseconds(random.Uniform(1, 200));
  const size_t leave_after =
      act == kCancel ? static_cast<size_t>(random.Uniform(0, 60)) : SIZE_MAX;
  Generation generation;
  const absl::Status status = client.Generate(
      request,
      [&](const v1::GenerateEvent& event) {
        EXPECT_TRUE(generation.Add(event).ok());
        return generation.token_ids.size() < leave_after;
      },
      options);
  const std::vector<uint32_t>& want = expected_[index];
  if (status.ok()) {
    EXPECT_EQ(generation.token_ids, want) << index;
    return;
  }
  // The server's clock may find the deadline passed before the client's does;
  // or that it would, in which case it refuses the call.
  EXPECT_TRUE((act != kFinish && absl::IsCancelled(status)) ||
              (act == kDeadline && absl::IsDeadlineExceeded(status)) ||
              (act == kDeadline && absl::IsResourceExhausted(status) &&
               absl::StrContains(status.message(), "deadline leaves")))
      << kActNames[act] << ": " << status;
  ASSERT_LE(generation.token_ids.size(), want.size());
  EXPECT_TRUE(std::equal(generation.token_ids.begin(),
                         generation.token_ids.end(), want.begin()));
}

v1::DecodeRequest Turn(uint64_t seed, int64_t tokens, uint32_t generate) {
  v1::DecodeRequest request;
  for (uint32_t id : RandomPrompt(seed, tokens))
    request.mutable_append_ids()->add_ids(id);
  request.set_generate(generate);
  request.mutable_sampling()->set_seed(seed);
  request.mutable_sampling()->set_temperature(0.7f);
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

// Two turns, with a rest between them in which others take the memory.
std::vector<uint32_t> RandomLoadTest::TwoTurns(uint64_t which,
                                               std::chrono::milliseconds rest) {
  const auto stub = v1::Inference::NewStub(Channel());
  grpc::ClientContext context;
  const auto stream = stub->Decode(&context);
  std::vector<uint32_t> tokens;
  v1::DecodeResponse response;
  for (int turn = 0; turn < 2; ++turn) {
    v1::DecodeRequest request =
        Turn(which, 40 + 60 * static_cast<int64_t>(which), 20);
    if (turn == 1) {
      request.clear_sampling();  // as for the first turn
      request.clear_stopping();
      std::this_thread::sleep_for(rest);
    }
    stream->Write(request);
    if (turn == 1) stream->WritesDone();
    while (stream->Read(&response)) {
      for (uint32_t id : response.tokens().ids()) tokens.push_back(id);
      if (response.done()) break;
    }
  }
  while (stream->Read(&response)) {
  }
  const grpc::Status status = stream->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(tokens.size(), 40);
  return tokens;
}

// Asks for much and does not read: paused.
void RandomLoadTest::SlowReader(TestRandom& random) {
  const auto stub = v1::Inference::NewStub(Channel());
  grpc::ClientContext context;
  const auto stream = stub->Decode(&context);
  v1::DecodeRequest request = Turn(9, 30, 900);
  request.set_logits(v1::LOGITS_MODE_NEXT);
  stream->Write(request);
  std::this_thread::sleep_for(
      std::chrono::milliseconds(random.Uniform(100, 1500)));
  v1::DecodeResponse response;
  for (int64_t n = random.Uniform(0, 50); n > 0 && stream->Read(&response);
       --n) {
  }
  context.TryCancel();
  EXPECT_FALSE(stream->Finish().ok());
}

// The connection is gone without a word.
void RandomLoadTest::LeaveGrpc(TestRandom& random) {
  HttpConnection connection(grpc_port_);
  std::string bytes =
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + std::string("\0\0\0\4\0\0\0\0\0", 9);
  connection.Send(bytes.substr(0, random.Uniform(1, bytes.size())));
  if (random.Chance(0.5)) connection.Reset();
  const auto stub = v1::Inference::NewStub(Channel());
  grpc::ClientContext context;
  const auto stream =
      stub->Generate(&context, GreedyRequest({256, 65, 66}, 900));
  v1::GenerateEvent event;
  for (int64_t n = random.Uniform(0, 20); n > 0 && stream->Read(&event); --n) {
  }
  // Context, stub and channel are destroyed before the call has ended.
  context.TryCancel();
}

void RandomLoadTest::Http(TestRandom& random, int act) {
  if (act == kHttp) {
    const HttpResult result =
        Fetch(http_port_,
              PostText(kPath,
                       "{\"prompt\":\"def f(\",\"max_tokens\":30,\"seed\":3,"
                       "\"ignore_eos\":true,\"temperature\":0}"));
    EXPECT_EQ(result.status, 200) << result.body;
    return;
  }
  HttpConnection connection(http_port_);
  const std::string text =
      PostText(kPath,
               "{\"prompt\":\"class A\",\"max_tokens\":900,\"ignore_eos\":true,"
               "\"stream\":true,\"logprobs\":5}");
  connection.Send(random.Chance(0.3)
                      ? text.substr(0, random.Uniform(1, text.size()))
                      : text + text);
  if (random.Chance(0.7)) {
    std::this_thread::sleep_for(
        std::chrono::milliseconds(random.Uniform(0, 100)));
  }
  if (random.Chance(0.5)) connection.Reset();
}

void RandomLoadTest::BadRequest(RecurveClient& client, TestRandom& random) {
  v1::GenerateRequest request = RequestOf(0);
  HttpResult result;
  switch (random.Uniform(0, 3)) {
    case 0:
      request.mutable_prompt_ids()->add_ids(4711);
      break;
    case 1:
      request.mutable_stopping()->set_max_new_tokens(5000);
      break;
    case 2:
      result = Fetch(http_port_, PostText(kPath, "{\"prompt\":[[["));
      EXPECT_EQ(result.status, 400) << result.body;
      return;
    default:
      result = Fetch(http_port_,
                     PostText(kPath, "{\"prompt\":\"a\",\"max_tokens\":-1}"));
      EXPECT_EQ(result.status, 400) << result.body;
      return;
  }
  EXPECT_EQ(Generate(client, request).status.code(),
            absl::StatusCode::kInvalidArgument);
}

void RandomLoadTest::Act(RecurveClient& client, TestRandom& random, int act) {
  switch (act) {
    case kSecondTurn: {
      const auto which = static_cast<uint64_t>(random.Uniform(0, 3));
      const std::chrono::milliseconds rest(random.Uniform(0, 300));
      EXPECT_EQ(TwoTurns(which, rest), two_turns_[which]);
      return;
    }
    case kSlowReader:
      return SlowReader(random);
    case kLeaveGrpc:
      return LeaveGrpc(random);
    case kLeaveHttp:
    case kHttp:
      return Http(random, act);
    case kBadRequest:
      return BadRequest(client, random);
    default:
      return Finish(client, random, act);
  }
}

// --- The load ---

void RandomLoadTest::Round(int round, SteadyClock::time_point until) {
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([this, c, round, until] {
      TestRandom random(static_cast<uint64_t>(round * kClients + c) + 1000);
      const auto client = Connect();
      while (SteadyClock::now() < until && !HasFailure()) {
        int64_t drawn = random.Uniform(0, 99);
        int act = 0;
        while (drawn >= kShares[act]) drawn -= kShares[act++];
        Act(*client, random, act);
        ++acts_[act];
      }
    });
  }
  for (std::thread& client : clients) client.join();
}

// MiB used on the GPU, by all processes.
int64_t DeviceMemory() {
  if (TestDeviceFlag() != "cuda") return 0;
  FILE* pipe = popen(
      "nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits", "r");
  if (pipe == nullptr) return -1;
  long long used = -1;
  if (std::fscanf(pipe, "%lld", &used) != 1) used = -1;
  pclose(pipe);
  return used;
}

Footprint RandomLoadTest::AtRest() {
  ExpectNothingLeft(*Connect());
  EXPECT_EQ(Metric("recurve_swap_bytes{state=\"used\"}"), 0);
  EXPECT_TRUE(server_->Running()) << server_->Err();
  Footprint footprint;
  // Connections that clients have left take a moment to go.
  int64_t before = 0;
  WaitFor([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    before = std::exchange(footprint.descriptors, server_->OpenFiles());
    return before == footprint.descriptors;
  });
  footprint.memory = server_->MemoryBytes();
  footprint.threads = server_->Threads();
  footprint.device = DeviceMemory();
  return footprint;
}

TEST_F(RandomLoadTest, LeavesNothingBehind) {
  ASSERT_NE(address_, "") << server_->Err();
  for (int i = 0; i < kPrompts; ++i) {
    const auto outcome = Generate(*Connect(), RequestOf(i));
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    expected_.push_back(outcome.generation.token_ids);
  }
  for (uint64_t which = 0; which < 4; ++which)
    two_turns_.push_back(TwoTurns(which, std::chrono::milliseconds(0)));
  const double seconds = std::atof(
      FromEnvironment("RECURVE_LOAD_SECONDS", Sanitized() ? "2" : "8").c_str());
  const int rounds = seconds >= 60 ? 10 : 4;
  std::vector<Footprint> footprints;
  // On a slow machine it takes more rounds until everything has happened.
  for (int round = 0;
       (round < rounds || (round < 10 * rounds && !AllHappened())) &&
       !HasFailure();
       ++round) {
    Round(round, SteadyClock::now() +
                     std::chrono::milliseconds(
                         static_cast<int64_t>(seconds * 1000 / rounds)));
    footprints.push_back(AtRest());
    const Footprint& now = footprints.back();
    std::printf(
        "round %2d: %6.1f MiB, %lld descriptors, %lld threads, %lld MiB on "
        "the device\n",
        round, static_cast<double>(now.memory) / (1 << 20),
        static_cast<long long>(now.descriptors),
        static_cast<long long>(now.threads),
        static_cast<long long>(now.device));
    std::fflush(stdout);
  }
  for (int act = 0; act < kActs; ++act) {
    std::printf("%-12s %lld\n", kActNames[act],
                static_cast<long long>(acts_[act].load()));
    EXPECT_GT(acts_[act], 0) << kActNames[act];
  }
  // The load was what it is meant to be.
  for (const char* name : kCounters) {
    const double count = Metric(name);
    std::printf("%s %.0f\n", name, count);
    EXPECT_GT(count, 0) << name;
  }
  if (HasFailure()) FAIL() << server_->Err();
  // The first rounds find the most that is needed at a time.
  const Footprint& first = footprints[rounds / 4];
  const Footprint& last = footprints.back();
  EXPECT_LT(last.memory - first.memory, 48 << 20);
  // gRPC's come and go: it takes up to two for each core as it finds itself
  // short of them, which may be in any round.
  const int64_t grpc_threads =
      std::max(8, 2 * static_cast<int>(std::thread::hardware_concurrency()));
  // The last round's may take a while to go.
  EXPECT_TRUE(WaitFor([&] {
    return server_->OpenFiles() <= first.descriptors + 4 &&
           server_->Threads() <= first.threads + grpc_threads;
  })) << server_->OpenFiles()
      << " descriptors, " << server_->Threads() << " threads";
  EXPECT_LE(last.device, first.device);
}

}  // namespace
}  // namespace recurve
