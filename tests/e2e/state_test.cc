// States as clients see them: taken, forked, moved, listed, refused.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"
#include "recurve/v1/state.grpc.pb.h"
#include "tests/e2e/server_fixture.h"

namespace recurve {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

ServerOptions WithStates() {
  ServerOptions options = DemoOptions();
  options.model.prefix_cache_bytes = int64_t{64} << 20;
  return options;
}

// A Decode call.
class Driven {
 public:
  explicit Driven(TestServer& server, const std::string& key = "")
      : stub_(v1::Inference::NewStub(server.Channel())) {
    if (!key.empty()) context_.AddMetadata("authorization", "Bearer " + key);
    stream_ = stub_->Decode(&context_);
  }
  ~Driven() {
    if (!finished_) context_.TryCancel();
  }

  // The tokens of a command.
  std::vector<uint32_t> Run(const v1::DecodeRequest& request) {
    EXPECT_TRUE(stream_->Write(request));
    std::vector<uint32_t> tokens;
    v1::DecodeResponse response;
    while (stream_->Read(&response)) {
      if (response.has_admitted()) id_ = response.admitted().request_id();
      const auto& ids = response.tokens().ids();
      tokens.insert(tokens.end(), ids.begin(), ids.end());
      if (!response.done()) continue;
      usage_ = response.usage();
      return tokens;
    }
    ADD_FAILURE() << "the call ended: " << stream_->Finish().error_message();
    finished_ = true;
    return tokens;
  }
  const std::string& id() const { return id_; }
  const v1::Usage& usage() const { return usage_; }

 private:
  const std::unique_ptr<v1::Inference::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<
      grpc::ClientReaderWriter<v1::DecodeRequest, v1::DecodeResponse>>
      stream_;
  std::string id_;
  v1::Usage usage_;
  bool finished_ = false;
};

v1::DecodeRequest CommandOf(const std::vector<uint32_t>& append,
                            uint32_t generate) {
  v1::DecodeRequest request;
  if (!append.empty()) {
    request.mutable_append_ids()->mutable_ids()->Add(append.begin(),
                                                     append.end());
  }
  request.set_generate(generate);
  return request;
}

v1::DecodeRequest FirstOf(const std::vector<uint32_t>& append,
                          uint32_t generate) {
  v1::DecodeRequest request = CommandOf(append, generate);
  request.mutable_sampling()->set_temperature(0.8f);
  request.mutable_sampling()->set_seed(5);
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

// The State service, one call at a time.
class States {
 public:
  explicit States(TestServer& server, std::string key = "")
      : stub_(v1::State::NewStub(server.Channel())), key_(std::move(key)) {}

  template <typename Request, typename Response>
  grpc::Status Call(grpc::Status (v1::State::Stub::*method)(
                        grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response) {
    grpc::ClientContext context;
    Authorize(context);
    return (stub_.get()->*method)(&context, request, response);
  }

  v1::StateInfo Snapshot(const std::string& request_id,
                         const std::string& name = "") {
    v1::SnapshotRequest request;
    request.set_request_id(request_id);
    request.mutable_options()->set_name(name);
    v1::StateInfo info;
    const auto status = Call(&v1::State::Stub::Snapshot, request, &info);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return info;
  }
  std::string Export(const std::string& state) {
    grpc::ClientContext context;
    Authorize(context);
    v1::ExportStateRequest request;
    request.set_state(state);
    const auto reader = stub_->Export(&context, request);
    std::string bytes;
    v1::ExportStateResponse piece;
    while (reader->Read(&piece)) {
      EXPECT_LT(piece.ByteSizeLong(), size_t{4} << 20);
      bytes += piece.data();
    }
    const auto status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return bytes;
  }
  grpc::Status Import(const std::string& bytes, v1::StateInfo* info,
                      size_t piece = 100'000) {
    grpc::ClientContext context;
    Authorize(context);
    const auto writer = stub_->Import(&context, info);
    v1::ImportStateRequest request;
    request.mutable_options()->set_name("imported");
    writer->Write(request);
    for (size_t at = 0; at < bytes.size(); at += piece) {
      request.set_data(bytes.substr(at, piece));
      if (!writer->Write(request)) break;
    }
    writer->WritesDone();
    return writer->Finish();
  }
  grpc::Status Release(const std::string& state) {
    v1::ReleaseStateRequest request;
    request.set_state(state);
    v1::ReleaseStateResponse response;
    return Call(&v1::State::Stub::Release, request, &response);
  }
  v1::ListStatesResponse List() {
    v1::ListStatesResponse response;
    const auto status =
        Call(&v1::State::Stub::List, v1::ListStatesRequest(), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

 private:
  void Authorize(grpc::ClientContext& context) const {
    if (!key_.empty()) context.AddMetadata("authorization", "Bearer " + key_);
  }

  const std::unique_ptr<v1::State::Stub> stub_;
  const std::string key_;
};

TEST(StateTest, GoesOnFromANamedState) {
  TestServer server(WithStates());
  States states(server);
  Driven sequence(server);
  sequence.Run(FirstOf(RandomPrompt(1, 200), 9));
  const v1::StateInfo info = states.Snapshot(sequence.id(), "turn-1");
  EXPECT_THAT(info.id(), SizeIs(32));
  EXPECT_EQ(info.tokens(), 209u);
  EXPECT_EQ(info.computed_tokens(), 208u);
  EXPECT_GT(info.bytes(), 0u);
  EXPECT_EQ(info.ttl_seconds(), 600);

  // Greedy, because the two count their generated tokens differently.
  v1::GenerateRequest request = GreedyRequest(RandomPrompt(2, 50), 12);
  request.set_from_state("turn-1");
  const auto client = server.Connect();
  const auto by_name = Generate(*client, request);
  ASSERT_TRUE(by_name.status.ok()) << by_name.status;
  request.set_from_state(info.id());
  const auto by_id = Generate(*client, request);
  EXPECT_EQ(by_id.generation.token_ids, by_name.generation.token_ids);
  const v1::Usage& usage = by_id.generation.end.usage();
  EXPECT_EQ(usage.prompt_tokens(), 259u);
  EXPECT_EQ(usage.cache().cached_tokens(), 208u);

  Driven greedy(server);
  v1::DecodeRequest first = FirstOf(RandomPrompt(1, 200), 9);
  greedy.Run(first);
  v1::DecodeRequest from = CommandOf(RandomPrompt(2, 50), 12);
  from.mutable_stopping()->set_ignore_eos(true);
  from.set_from_state("turn-1");
  Driven decoded(server);
  const auto ids = decoded.Run(from);
  EXPECT_EQ(ids, std::vector<uint32_t>(by_id.generation.token_ids.begin(),
                                       by_id.generation.token_ids.end()));

  EXPECT_THAT(states.List().states(), SizeIs(1));
  EXPECT_TRUE(states.Release("turn-1").ok());
  EXPECT_EQ(states.Release("turn-1").error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(states.List().bytes(), 0u);
}

TEST(StateTest, ForksDrawTheirOwnTokens) {
  TestServer server(WithStates());
  States states(server);
  Driven sequence(server);
  sequence.Run(FirstOf(RandomPrompt(1, 100), 0));
  states.Snapshot(sequence.id(), "base");
  v1::ForkRequest request;
  request.set_state("base");
  request.set_count(4);
  request.set_seed(11);
  v1::ForkResponse response;
  auto status = states.Call(&v1::State::Stub::Fork, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_THAT(response.states(), SizeIs(4));
  std::vector<std::vector<uint32_t>> outputs;
  for (const v1::StateInfo& child : response.states()) {
    for (int round = 0; round < 2; ++round) {
      v1::DecodeRequest from = CommandOf({}, 8);
      from.mutable_sampling()->set_temperature(1);
      from.mutable_stopping()->set_ignore_eos(true);
      from.set_from_state(child.id());
      Driven each(server);
      outputs.push_back(each.Run(from));
      EXPECT_EQ(each.usage().cache().cached_tokens(), 99u);
    }
    // The seed is the state's.
    EXPECT_EQ(outputs[outputs.size() - 1], outputs[outputs.size() - 2]);
  }
  std::sort(outputs.begin(), outputs.end());
  EXPECT_GE(std::unique(outputs.begin(), outputs.end()) - outputs.begin(), 2);
}

TEST(StateTest, MovesToAnotherServerAndIsRefusedIfDamaged) {
  TestServer a(WithStates());
  TestServer b(WithStates());
  Driven sequence(a);
  sequence.Run(FirstOf(RandomPrompt(1, 200), 0));
  States at_a(a);
  States at_b(b);
  at_a.Snapshot(sequence.id(), "prompt");
  const std::string bytes = at_a.Export("prompt");
  v1::StateInfo info;
  ASSERT_TRUE(at_b.Import(bytes, &info, 1 << 20).ok());
  EXPECT_EQ(info.name(), "imported");
  EXPECT_EQ(info.tokens(), 200u);
  EXPECT_EQ(info.computed_tokens(), 200u);
  EXPECT_TRUE(at_b.Release("imported").ok());
  ASSERT_TRUE(at_b.Import(bytes, &info, 777).ok());  // in any pieces

  // As one server that is given all of the prompt.
  const auto want =
      Generate(*a.Connect(), GreedyRequest(RandomPrompt(1, 200), 9));
  v1::DecodeRequest from = CommandOf({}, 9);
  from.set_from_state("imported");
  from.mutable_stopping()->set_ignore_eos(true);
  Driven moved(b);
  const auto got = moved.Run(from);
  EXPECT_EQ(got, std::vector<uint32_t>(want.generation.token_ids.begin(),
                                       want.generation.token_ids.end()));
  EXPECT_TRUE(at_b.Release("imported").ok());

  uint64_t next = 12345;
  const int flips = Sanitized() ? 20 : 200;
  for (int i = 0; i < flips; ++i) {
    next = next * 6364136223846793005u + 1442695040888963407u;
    std::string flipped = bytes;
    flipped[(next >> 20) % bytes.size()] ^=
        static_cast<char>(1 << ((next >> 10) % 8));
    EXPECT_FALSE(at_b.Import(flipped, &info).ok()) << i;
  }
  const auto cut = at_b.Import(bytes.substr(0, bytes.size() - 1), &info);
  EXPECT_EQ(cut.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_FALSE(at_b.Import(bytes + "x", &info).ok());
  EXPECT_EQ(at_b.Import("", &info).error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(at_b.Import("no state at all, but long enough", &info).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(at_b.List().states_size(), 0);
  EXPECT_EQ(at_b.List().bytes(), 0u);
}

TEST(StateTest, WhatCannotBeIsSaid) {
  TestServer server(WithStates());
  States states(server);
  v1::GenerateRequest request = GreedyRequest({256, 65}, 3);
  request.set_from_state("nothing");
  const auto unknown = Generate(*server.Connect(), request);
  EXPECT_TRUE(absl::IsNotFound(unknown.status)) << unknown.status;

  Driven sequence(server);
  v1::DecodeRequest keep = FirstOf(RandomPrompt(1, 40), 3);
  keep.set_keep(true);
  sequence.Run(keep);
  v1::SnapshotRequest snapshot;
  snapshot.set_request_id(sequence.id());
  snapshot.set_at(7);
  v1::StateInfo info;
  auto status = states.Call(&v1::State::Stub::Snapshot, snapshot, &info);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::OUT_OF_RANGE);
  EXPECT_THAT(status.error_message(), HasSubstr("43"));
  snapshot.clear_at();
  for (const auto& [name, error] :
       std::vector<std::pair<std::string, std::string>>{
           {"a b", "options.name has the byte 32 at 1"},
           {std::string(129, 'a'), "options.name has 129 bytes"},
           {std::string(32, 'a'), "could be an id"}}) {
    snapshot.mutable_options()->set_name(name);
    status = states.Call(&v1::State::Stub::Snapshot, snapshot, &info);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr(error));
  }
  states.Snapshot(sequence.id(), "taken");
  snapshot.mutable_options()->set_name("taken");
  status = states.Call(&v1::State::Stub::Snapshot, snapshot, &info);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("name is taken"));

  v1::ForkRequest fork;
  fork.set_state("taken");
  fork.set_count(17);
  v1::ForkResponse forked;
  status = states.Call(&v1::State::Stub::Fork, fork, &forked);
  EXPECT_THAT(status.error_message(),
              HasSubstr("count is 17; expected 1 to 16"));

  TestServer without;
  States none(without);
  fork.set_count(1);
  status = none.Call(&v1::State::Stub::Fork, fork, &forked);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("--prefix-cache-bytes"));
}

TEST(StateTest, TenantsSeeOnlyTheirOwn) {
  ServerOptions options = WithStates();
  const std::string path = testing::TempDir() + "/state_keys";
  std::ofstream(path) << KeyLine("acme", "key-a") << KeyLine("zoo", "key-z")
                      << KeyLine("small", "key-s", "max_state_bytes=1000");
  options.api_keys_file = path;
  TestServer server(options);
  States acme(server, "key-a");
  States zoo(server, "key-z");
  Driven sequence(server, "key-a");
  sequence.Run(FirstOf(RandomPrompt(1, 100), 3));
  const v1::StateInfo info = acme.Snapshot(sequence.id(), "mine");
  EXPECT_EQ(zoo.List().states_size(), 0);
  EXPECT_EQ(zoo.Release(info.id()).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(zoo.Release("mine").error_code(), grpc::StatusCode::NOT_FOUND);
  v1::SnapshotRequest snapshot;
  snapshot.set_request_id(sequence.id());
  v1::StateInfo taken;
  EXPECT_EQ(zoo.Call(&v1::State::Stub::Snapshot, snapshot, &taken).error_code(),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(acme.List().states_size(), 1);

  Driven small(server, "key-s");
  small.Run(FirstOf(RandomPrompt(1, 100), 3));
  States of_small(server, "key-s");
  snapshot.set_request_id(small.id());
  const auto full = of_small.Call(&v1::State::Stub::Snapshot, snapshot, &taken);
  EXPECT_EQ(full.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(full.error_message(), HasSubstr("0 of 1000"));
  EXPECT_EQ(of_small.List().max_bytes(), 1000u);
}

// Nothing is computed: the next token is drawn from logits that have moved.
TEST(StateTest, AnImportedOneCostsWhatIsComputed) {
  ServerOptions options = WithStates();
  options.api_keys_file = testing::TempDir() + "/imported_keys";
  std::ofstream(options.api_keys_file)
      << KeyLine("acme", "key-a", "tokens_per_second=1 token_burst=300");
  TestServer server(options);
  States states(server, "key-a");
  {
    Driven sequence(server, "key-a");
    sequence.Run(FirstOf(RandomPrompt(1, 200), 0));
    states.Snapshot(sequence.id(), "made");
  }
  v1::StateInfo info;
  ASSERT_TRUE(states.Import(states.Export("made"), &info).ok());
  EXPECT_EQ(info.computed_tokens(), 200u);
  for (int i = 0; i < 3; ++i) {
    v1::DecodeRequest from = CommandOf({}, 1);
    from.set_from_state("imported");
    Driven sequence(server, "key-a");
    EXPECT_THAT(sequence.Run(from), SizeIs(1));
    EXPECT_EQ(sequence.usage().cache().cached_tokens(), 200u);
  }
}

TEST(StateTest, WhatCannotBeWrittenIsNotPinned) {
  ServerOptions options = WithStates();
  options.state_dir = testing::TempDir() + "/state_dir_gone";
  std::filesystem::remove_all(options.state_dir);
  TestServer server(options);
  States states(server);
  Driven sequence(server);
  sequence.Run(FirstOf(RandomPrompt(1, 150), 4));
  const v1::StateInfo made = states.Snapshot(sequence.id(), "made");
  std::filesystem::remove_all(options.state_dir);

  v1::StateInfo info;
  v1::PinStateRequest pin;
  pin.set_state("made");
  pin.mutable_options()->set_pinned(true);
  pin.mutable_options()->set_name("renamed");
  EXPECT_THAT(states.Call(&v1::State::Stub::Pin, pin, &info).error_message(),
              HasSubstr("cannot be written"));
  v1::SnapshotRequest snapshot;
  snapshot.set_request_id(sequence.id());
  snapshot.mutable_options()->set_pinned(true);
  snapshot.mutable_options()->set_name("new");
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(states.Call(&v1::State::Stub::Snapshot, snapshot, &info)
                    .error_message(),
                HasSubstr("cannot be written"));
  }
  const v1::ListStatesResponse listed = states.List();
  ASSERT_THAT(listed.states(), SizeIs(1));
  EXPECT_EQ(listed.states(0).name(), "made");
  EXPECT_FALSE(listed.states(0).pinned());
  EXPECT_EQ(listed.states(0).ttl_seconds(), made.ttl_seconds());
}

TEST(StateTest, PinnedOnesOutliveTheServer) {
  ServerOptions options = WithStates();
  options.state_dir = testing::TempDir() + "/state_dir";
  std::filesystem::remove_all(options.state_dir);
  std::string id;
  std::string dropped;
  std::vector<uint32_t> want;
  const auto go_on = [](TestServer& server, const std::string& state) {
    v1::DecodeRequest from = CommandOf(RandomPrompt(2, 40), 9);
    from.mutable_stopping()->set_ignore_eos(true);
    from.set_from_state(state);
    return Driven(server).Run(from);
  };
  {
    TestServer server(options);
    States states(server);
    Driven sequence(server);
    sequence.Run(FirstOf(RandomPrompt(1, 150), 4));
    id = states.Snapshot(sequence.id(), "kept").id();
    dropped = states.Snapshot(sequence.id(), "dropped").id();
    states.Snapshot(sequence.id(), "not-pinned");
    for (const char* name : {"kept", "dropped"}) {
      v1::PinStateRequest pin;
      pin.set_state(name);
      pin.mutable_options()->set_pinned(true);
      v1::StateInfo info;
      const auto status = states.Call(&v1::State::Stub::Pin, pin, &info);
      ASSERT_TRUE(status.ok()) << status.error_message();
      EXPECT_TRUE(info.pinned() && info.stored());
      EXPECT_EQ(info.ttl_seconds(), 0);
    }
    EXPECT_TRUE(states.Release("dropped").ok());
    want = go_on(server, "kept");
  }
  const std::string path = options.state_dir + "/" + id + ".state";
  ASSERT_TRUE(std::filesystem::exists(path));
  {
    TestServer server(options);
    States states(server);
    const v1::ListStatesResponse listed = states.List();
    ASSERT_THAT(listed.states(), SizeIs(1));
    const v1::StateInfo& info = listed.states(0);
    EXPECT_EQ(info.id(), id);
    EXPECT_EQ(info.name(), "kept");
    EXPECT_TRUE(info.pinned() && info.stored());
    EXPECT_EQ(go_on(server, id), want);
    // The folder is one server's.
    ServerOptions second = options;
    auto model = LoadModel(second.model, &second.engine);
    ASSERT_TRUE(model.ok());
    EXPECT_FALSE(Server::Start(second, *std::move(model)).ok());
  }
  // Damage is refused, and said; the file stays.
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(5000);
    const auto byte = static_cast<char>(file.get() ^ 4);
    file.seekp(5000);
    file.put(byte);
  }
  {
    TestServer server(options);
    EXPECT_EQ(States(server).List().states_size(), 0);
  }
  EXPECT_TRUE(std::filesystem::exists(path));
}

TEST(StateTest, SeveralContinuationsOfOnePrompt) {
  TestServer server(WithStates());
  const auto stub = v1::Inference::NewStub(server.Channel());
  v1::GenerateRequest request = GreedyRequest(RandomPrompt(3, 600), 8);
  request.mutable_sampling()->set_temperature(1);
  request.mutable_sampling()->set_seed(9);
  request.set_n(5);
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, request);
  std::vector<std::vector<uint32_t>> tokens(5);
  std::vector<uint64_t> seeds(5);
  std::vector<uint32_t> cached(5);
  v1::GenerateEvent event;
  while (reader->Read(&event)) {
    ASSERT_LT(event.sample(), 5u);
    auto& of = tokens[event.sample()];
    of.insert(of.end(), event.tokens().ids().begin(),
              event.tokens().ids().end());
    if (event.has_admitted()) seeds[event.sample()] = event.admitted().seed();
    if (event.has_finished()) {
      cached[event.sample()] = event.finished().usage().cache().cached_tokens();
    }
  }
  const auto status = reader->Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(seeds[0], 9u);
  // Each is what a request with its seed gives.
  TestServer cold;
  for (int i = 0; i < 5; ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(cached[i], i == 0 ? 0u : 600u);
    v1::GenerateRequest one = request;
    one.clear_n();
    one.mutable_sampling()->set_seed(seeds[i]);
    const auto want = Generate(*cold.Connect(), one);
    EXPECT_EQ(tokens[i],
              std::vector<uint32_t>(want.generation.token_ids.begin(),
                                    want.generation.token_ids.end()));
  }
  request.set_n(17);
  const auto refused = Generate(*server.Connect(), request);
  EXPECT_THAT(refused.status.message(), HasSubstr("n is 17; expected 1 to 16"));
  server.ExpectIdle();
}

}  // namespace
}  // namespace recurve
