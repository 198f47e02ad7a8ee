// What keeps recurve-server from starting: settings that are empty or wrong are
// refused, in one line, and not passed over.

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/e2e/server_fixture.h"
#include "tests/testing/certificates.h"
#include "tests/testing/process.h"

namespace recurve {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const char kServer[] = RECURVE_BINARY_DIR "/bin/recurve-server";
const char kDemo[] = RECURVE_SOURCE_DIR "/deploy/models/demo";

struct Refusal {
  std::vector<std::string> flags;
  std::vector<std::string> environment;
  int code;
  std::string message;
};

// The last line of what a server that does not start writes to standard error.
void ExpectRefused(const Refusal& refusal) {
  std::vector<std::string> command = {kServer};
  command.insert(command.end(), refusal.flags.begin(), refusal.flags.end());
  std::vector<std::string> environment = {std::string("RECURVE_MODEL=") + kDemo,
                                          "RECURVE_GRPC_PORT=0",
                                          "RECURVE_HTTP_PORT=0"};
  environment.insert(environment.end(), refusal.environment.begin(),
                     refusal.environment.end());
  Process server(command, environment);
  // One that starts would run on.
  ASSERT_TRUE(WaitFor([&] { return !server.Running(); })) << refusal.message;
  EXPECT_EQ(server.Wait(), refusal.code) << refusal.message;
  std::string line = server.Err();
  ASSERT_THAT(line, testing::EndsWith("\n"));
  line.pop_back();
  line = line.substr(line.rfind('\n') + 1);
  EXPECT_THAT(line, StartsWith("recurve-server: "));
  EXPECT_THAT(line, HasSubstr(refusal.message));
  // It is reported before weights are loaded.
  EXPECT_THAT(server.Err(), Not(HasSubstr("loaded ")));
}

// An empty value comes from a variable of a shell or of a manifest that was not
// set: taken for "not given", it would turn TLS or API keys off.
TEST(StartupTest, EmptyFlagsAreRefused) {
  ExpectRefused({{"--tls-cert", "", "--tls-key", ""},
                 {},
                 2,
                 "--tls-cert: expected a file"});
  ExpectRefused({{"--tls-client-ca", ""}, {}, 2, "--tls-client-ca: expected"});
  ExpectRefused({{"--api-keys-file", ""}, {}, 2, "--api-keys-file: expected"});
  ExpectRefused({{"--tls-key="}, {}, 2, "--tls-key"});
  // Would be every address there is.
  ExpectRefused({{"--host", ""}, {}, 2, "--host: expected an address"});
}

TEST(StartupTest, WhatIsNoNumberIsRefused) {
  for (const std::string value : {"", " ", "soon", "1s", "1,5"}) {
    ExpectRefused({{"--shutdown-timeout", value},
                   {},
                   2,
                   "--shutdown-timeout: '" + value +
                       "' is not a number; expected 0 to 86400 seconds"});
  }
  const std::string timeouts =
      "'' is not a number; expected 0.1 to 86400 seconds";
  ExpectRefused({{"--step-timeout", ""}, {}, 2, "--step-timeout: " + timeouts});
  ExpectRefused({{"--stalled-client-timeout", ""},
                 {},
                 2,
                 "--stalled-client-timeout: " + timeouts});
  ExpectRefused({{"--http-idle-timeout", ""},
                 {},
                 2,
                 "'' is not a number; expected 1 to 86400 seconds"});
  for (const char* value : {"0.9", "86401", "nan"}) {
    ExpectRefused({{"--http-idle-timeout", value},
                   {},
                   2,
                   absl::StrCat("--http-idle-timeout is ", value,
                                "; expected 1 to 86400 seconds")});
  }
  for (const char* value : {"0.09", "-1", "86401", "nan"}) {
    ExpectRefused({{"--http-stream-ping", value},
                   {},
                   2,
                   absl::StrCat("--http-stream-ping is ", value,
                                "; expected 0, or 0.1 to 86400 seconds")});
  }
  ExpectRefused({{"--max-decode-slowdown", ""},
                 {},
                 2,
                 "'' is not a number; expected 0, or 1.1 to 1000"});
  ExpectRefused({{"--max-num-seqs", ""},
                 {},
                 2,
                 "'' is not a whole number; expected 1 to 65536"});
  ExpectRefused({{"--step-timeout", "nan"}, {}, 2, "--step-timeout is nan"});
}

TEST(StartupTest, WhatIsNoSizeIsRefused) {
  ExpectRefused({{"--kv-pool-bytes", "1G"},
                 {},
                 2,
                 "--kv-pool-bytes: '1G' is not a size; expected 0 to "
                 "9223372036854775807 bytes, like 1500, 512MiB, 24Gi or "
                 "80GB"});
  ExpectRefused({{},
                 {"RECURVE_SWAP_BYTES=x"},
                 2,
                 "--swap-bytes: 'x' is not a size; expected 0 to "
                 "1125899906842624 bytes, like 1500, 512MiB, 24Gi or 80GB "
                 "(from RECURVE_SWAP_BYTES)"});
  // Units are taken.
  ExpectRefused({{"--swap-bytes", "1025TiB"},
                 {},
                 1,
                 "--swap-bytes is 1126999418470400; expected 0 to "});
  for (const char* size : {"1KiB", "1Ki"}) {
    ExpectRefused(
        {{"--kv-pool-bytes", size}, {}, 1, "--kv-pool-bytes is 1024"});
  }
}

TEST(StartupTest, AVariableOutOfItsRangeIsNamed) {
  ExpectRefused({{},
                 {"RECURVE_MAX_NUM_SEQS=-3"},
                 1,
                 "--max-num-seqs is -3; expected 1 to 65536 (from "
                 "RECURVE_MAX_NUM_SEQS)"});
  ExpectRefused({{},
                 {"RECURVE_TLS_RELOAD=0"},
                 2,
                 "--tls-reload is 0; expected 1 to 86400 seconds (from "
                 "RECURVE_TLS_RELOAD)"});
}

TEST(StartupTest, EmptyVariablesAreRefused) {
  ExpectRefused({{},
                 {"RECURVE_API_KEYS_FILE="},
                 2,
                 "RECURVE_API_KEYS_FILE is set to an empty value"});
  ExpectRefused({{},
                 {"RECURVE_TLS_CERT=", "RECURVE_TLS_KEY="},
                 2,
                 "RECURVE_TLS_CERT is set to an empty value"});
  ExpectRefused({{}, {"RECURVE_TLS_CLIENT_CA="}, 2, "RECURVE_TLS_CLIENT_CA"});
  ExpectRefused({{}, {"RECURVE_ADMIN="}, 2, "RECURVE_ADMIN is set to"});
  // Also where a flag would win: the rule is the same for all.
  ExpectRefused({{"--max-num-seqs", "3"},
                 {"RECURVE_MAX_NUM_SEQS="},
                 2,
                 "RECURVE_MAX_NUM_SEQS is set to an empty value"});
}

TEST(StartupTest, MessagesSayWhatIsAllowed) {
  ExpectRefused({{"--max-chunk-tokens", "-1"},
                 {},
                 2,
                 "--max-chunk-tokens is -1; expected 0 to "
                 "--max-num-batched-tokens"});
  ExpectRefused(
      {{"--max-chunk-tokens", "129", "--max-num-batched-tokens", "128"},
       {},
       2,
       "--max-chunk-tokens is 129; expected 0 to 128"});
  // How many there are by default is known with the device.
  ExpectRefused({{"--device", "cpu", "--max-chunk-tokens", "513"},
                 {},
                 1,
                 "--max-chunk-tokens is 513; expected 0 to 512"});
  ExpectRefused({{"--model", ""}, {}, 2, "--model: expected a folder"});
  ExpectRefused({{"--tokenizer", "foo"},
                 {},
                 2,
                 "--tokenizer: foo not in {auto,none,bytes,"});
}

// What a server with these flags logs before it finds no model.
std::string LogOf(const std::vector<std::string>& flags) {
  std::vector<std::string> command = {
      kServer,       "--model", "/nonexistent", "--grpc-port", "0",
      "--http-port", "0"};
  command.insert(command.end(), flags.begin(), flags.end());
  Process server(command);
  EXPECT_EQ(server.Wait(), 1);
  return server.Err();
}

// An operator sees at once what a load of minutes will end in.
TEST(StartupTest, TheCapacityIsLoggedBeforeWeightsAreLoaded) {
  Process server({kServer, "--model", kDemo, "--device", "cpu", "--grpc-port",
                  "0", "--http-port", "0", "--kv-pages", "40"});
  ASSERT_NE(server.GrpcAddress(), "") << server.Err();
  const std::string log = server.Err();
  const size_t loaded = log.find("loaded ");
  ASSERT_NE(loaded, std::string::npos) << log;
  for (const char* line :
       {"info device: cpu, by --device cpu",
        "info capacity: 32 sequences of up to 2560 tokens; 40 pages of 64 "
        "tokens (2176 bytes a token), 393216 bytes of state a sequence\n",
        "info memory: at least 29378624 (28.0 MiB): weights 10692672 (10.2 "
        "MiB), pages 5709824 (5.4 MiB), states 12976128 (12.4 MiB)\n",
        "warning max_model_len is 2560 and not the model's 8192"}) {
    EXPECT_LT(log.find(line), loaded) << line << "\n" << log;
  }
}

TEST(StartupTest, WarnsWhereStatesCannotHaveTheirBytes) {
  Process server({kServer, "--model", kDemo, "--device", "cpu", "--grpc-port",
                  "0", "--http-port", "0", "--prefix-cache-bytes", "64MiB",
                  "--state-bytes", "1GiB"});
  ASSERT_NE(server.GrpcAddress(), "") << server.Err();
  EXPECT_THAT(server.Err(),
              HasSubstr(" warning --state-bytes is 1073741824; states have "
                        "67108864, all of --prefix-cache-bytes, of which they "
                        "are a part\n"));
}

TEST(StartupTest, WarnsWhereAnybodyMayCall) {
  const std::string host = "192.0.2.1";  // of no machine
  const std::string who = "any client that reaches the server may generate";
  const std::string why = ": --host is " + host +
                          " and there is no --api-keys-file or "
                          "--tls-client-ca";
  EXPECT_THAT(LogOf({"--host", host}),
              HasSubstr(who + ", abort the requests of others and drain it" +
                        why + "\n"));
  EXPECT_THAT(LogOf({"--host", host, "--admin", "off"}),
              HasSubstr(who + why + "\n"));
  for (const std::string loopback : {"127.0.0.1", "localhost"}) {
    EXPECT_THAT(LogOf({"--host", loopback}), Not(HasSubstr("any client")));
  }
  const std::string keys = testing::TempDir() + "recurve_startup_keys";
  std::ofstream(keys) << KeyLine("tenant", "key");
  const std::string log = LogOf({"--host", host, "--api-keys-file", keys});
  std::filesystem::remove(keys);
  EXPECT_THAT(log, Not(HasSubstr("any client")));
  EXPECT_THAT(log, HasSubstr("clients send their API keys in plaintext"));
}

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) {
    ++count;
  }
  return count;
}

// In one line, with the limit, and without a stack of calls.
TEST(StartupTest, FewOpenFilesAreRefused) {
  int refused = 0;
  for (int limit = 4; limit <= 50; ++limit) {
    Process server(
        {"/bin/sh", "-c",
         "ulimit -n " + std::to_string(limit) + "; exec \"$0\" \"$@\"", kServer,
         "--model", kDemo, "--grpc-port", "0", "--http-port", "0",
         "--metrics-port", "0"});
    ASSERT_TRUE(WaitFor([&] { return !server.Running(); })) << limit;
    const int code = server.Wait();
    if (code == 127) continue;  // the system could not load its libraries
    EXPECT_EQ(code, 1) << limit;
    ++refused;
    EXPECT_THAT(server.Err(),
                StartsWith("recurve-server: recurve-server needs 48 more open "
                           "files and the system gives "));
    EXPECT_THAT(server.Err(),
                testing::EndsWith("the process may open " +
                                  std::to_string(limit) + " (ulimit -n)\n"));
    EXPECT_EQ(Count(server.Err(), "\n"), 1) << server.Err();
  }
  EXPECT_GT(refused, 30);
}

// A folder with a pair of TLS files, which can be renewed.
class TlsFolder {
 public:
  TlsFolder() {
    std::string name = testing::TempDir() + "recurve_startup_XXXXXX";
    path_ = mkdtemp(name.data());
  }
  ~TlsFolder() { std::filesystem::remove_all(path_); }
  TlsFolder(const TlsFolder&) = delete;
  TlsFolder& operator=(const TlsFolder&) = delete;

  void Write(const PemPair& pair) const {
    for (const auto& [name, text] :
         {std::pair(cert(), pair.certificate), std::pair(key(), pair.key)}) {
      std::ofstream(name + ".new") << text;
      std::filesystem::rename(name + ".new", name);
    }
  }
  std::string cert() const { return path_ + "/cert.pem"; }
  std::string key() const { return path_ + "/key.pem"; }

 private:
  std::string path_;
};

// Both ports have the same certificates: they are looked at once.
TEST(StartupTest, WarnsOfCertificatesThatClientsCannotUse) {
  const TlsFolder folder;
  folder.Write(MakeCertificate({.kind = "P-521", .end_seconds = -60}));
  Process server({kServer, "--model", kDemo, "--grpc-port", "0", "--http-port",
                  "0", "--metrics-port", "0", "--tls-cert", folder.cert(),
                  "--tls-key", folder.key(), "--tls-client-ca", folder.cert(),
                  "--tls-reload", "1"});
  ASSERT_FALSE(server.GrpcAddress().empty()) << server.Err();
  const std::string log = server.Err();
  const std::string place = " warning --tls-cert " + folder.cert() + ": ";
  EXPECT_EQ(Count(log, "ECDSA P-521"), 1) << log;
  EXPECT_EQ(Count(log, "has expired on"), 2) << log;
  EXPECT_EQ(Count(log, place), 2) << log;
  EXPECT_EQ(Count(log, " warning --tls-client-ca " + folder.cert() + ": "), 1);
  const std::string metrics = server.Address("metrics");
  const int port = std::stoi(metrics.substr(metrics.rfind(':') + 1));
  const auto left = [&](const std::string& file) {
    return MetricValue(
               port,
               "recurve_tls_certificate_expiry_timestamp_seconds{file=\"" +
                   file + "\"}") -
           static_cast<double>(std::time(nullptr));
  };
  EXPECT_NEAR(left("cert"), -60, 600);
  EXPECT_NEAR(left("client_ca"), -60, 600);
  // New ones are looked at, too.
  folder.Write(MakeCertificate({.end_seconds = 10 * 86400}));
  const auto expires = [&](const std::string& flag) {
    return Count(server.Err(), " warning " + flag + " " + folder.cert() +
                                   ": the certificate of 'CN = server' expires "
                                   "on") >= 1;
  };
  EXPECT_TRUE(WaitFor([&] {
    return expires("--tls-cert") && expires("--tls-client-ca");
  })) << server.Err();
  EXPECT_NEAR(left("cert"), 10 * 86400, 600);
  // Twice if the file was replaced while the server was reading both.
  EXPECT_LE(Count(server.Err(), "ECDSA P-521"), 2);
}

TEST(StartupTest, WhatIsWrongWithoutAModelIsSaidBeforeItIsLoaded) {
  ExpectRefused({{"--api-keys-file", "/nonexistent"},
                 {},
                 1,
                 "--api-keys-file /nonexistent cannot be read"});
  ExpectRefused({{"--tls-cert", "/nonexistent", "--tls-key", "/nonexistent"},
                 {},
                 1,
                 "--tls-cert /nonexistent cannot be used"});
  ExpectRefused({{"--tls-cert", kServer}, {}, 1, "--tls-cert needs --tls-key"});
  ExpectRefused({{},
                 {"RECURVE_SERVED_MODEL_NAME=demo\xff"},
                 1,
                 "--served-model-name is 'demo\\xff'; expected UTF-8 (from "
                 "RECURVE_SERVED_MODEL_NAME)"});
  ExpectRefused({{"--model", "/nonexistent/\xe9t\xe9/"},
                 {},
                 1,
                 "--model is '/nonexistent/\\xe9t\\xe9/'; expected a folder "
                 "whose name is UTF-8, or --served-model-name"});
  const std::string address = "192.0.2.1";  // of no machine
  ExpectRefused({{"--host", address},
                 {},
                 1,
                 "cannot listen for HTTP on " + address + ":0: Cannot assign"});
  TestServer other;
  const std::string taken = std::to_string(other.server().http_port());
  const std::string where =
      " on 127.0.0.1:" + taken + ": Address already in use";
  ExpectRefused({{"--http-port", taken}, {}, 1, "listen for HTTP" + where});
  ExpectRefused({{"--metrics-port", taken}, {}, 1, "listen for HTTP" + where});
  ExpectRefused({{"--grpc-port", taken}, {}, 1, "listen for gRPC" + where});
}

}  // namespace
}  // namespace recurve
