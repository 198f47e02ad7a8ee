#include "client/lib/no_proxy.h"

#include <cstdlib>
#include <map>
#include <string>

#include "gtest/gtest.h"

namespace recurve {
namespace {

TEST(NoProxyTest, KnowsThisMachine) {
  for (const char* host :
       {"localhost", "LocalHost", "localhost.", "a.localhost", "127.0.0.1",
        "127.255.255.255", "127.1", "0.0.0.0", "::1", "[::1]", "[::]",
        "0:0:0:0:0:0:0:1", "[::ffff:127.0.0.1]", "[::1%lo]"}) {
    EXPECT_TRUE(IsThisMachine(host)) << host;
  }
  for (const char* host :
       {"", "localhost.example", "notlocalhost", "126.255.255.255", "128.0.0.1",
        "127.0.0.1.example", "[::2]", "[::ffff:10.0.0.1]", "10.0.0.1"}) {
    EXPECT_FALSE(IsThisMachine(host)) << host;
  }
}

struct Case {
  const char* list;
  const char* host;
  bool matches;
};

TEST(NoProxyTest, Matches) {
  for (const Case& c : {
           Case{"*", "a.example", true},
           {"b, *", "a.example", true},
           {"", "a.example", false},
           {",, ", "a.example", false},
           {"example", "a.example", true},
           {"example", "example", true},
           {"EXAMPLE.", "a.example", true},
           {".example", "a.example", true},
           {".example", "example", true},
           {"*.example", "b.a.example", true},
           {"ample", "a.example", false},
           {"a.example", "example", false},
           {"x,a.example\ty", "a.example", true},
           {"a.example:50051", "a.example", true},
           {"a.example:50052", "a.example", false},
           {"*.", "a.example", false},
           {".", "a.example", false},
           {"10.1.2.3", "10.1.2.3", true},
           {"10.1.2.3:50051", "10.1.2.3", true},
           {"10.1.2.3:1", "10.1.2.3", false},
           {"2.3", "10.1.2.3", false},
           {"10.1.0.0/16", "10.1.2.3", true},
           {"10.1.2.3/32", "10.1.2.3", true},
           {"10.1.2.2/31", "10.1.2.3", true},
           {"10.1.2.4/31", "10.1.2.3", false},
           {"0.0.0.0/0", "10.1.2.3", true},
           {"10.2.0.0/16", "10.1.2.3", false},
           {"10.1.0.0/33", "10.1.2.3", false},
           {"10.1.0.0/-1", "10.1.2.3", false},
           {"10.1.0.0/", "10.1.2.3", false},
           {"10.1.0.0/16", "a.example", false},
           {"fd00::1", "[fd00::1]", true},
           {"[fd00:0::1]", "[fd00::1]", true},
           {"[fd00::1]:50051", "[fd00::1]", true},
           {"[fd00::1]:1", "[fd00::1]", false},
           {"fd00::/8", "[fd12::1]", true},
           {"fd00::/16", "[fd12::1]", false},
           {"fd00::/129", "[fd00::]", false},
           {"::/0", "[fd12::1]", true},
           {"::/0", "10.1.2.3", false},
           {"0.0.0.0/0", "[fd12::1]", false},
       }) {
    EXPECT_EQ(MatchesNoProxy(c.list, c.host, 50051), c.matches)
        << "'" << c.list << "' and " << c.host;
  }
}

// What the environment of this process says of proxies, for a while.
class Environment {
 public:
  using Variables = std::map<std::string, std::string>;
  explicit Environment(const Variables& variables) {
    for (const char* name : {"no_grpc_proxy", "no_proxy", "NO_PROXY"}) {
      if (const char* value = std::getenv(name)) before_[name] = value;
      unsetenv(name);
    }
    Set(variables);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment() {
    for (const char* name : {"no_grpc_proxy", "no_proxy", "NO_PROXY"}) {
      unsetenv(name);
    }
    Set(before_);
  }

 private:
  static void Set(const Variables& variables) {
    for (const auto& [name, value] : variables) {
      setenv(name.c_str(), value.c_str(), 1);
    }
  }
  Variables before_;
};

// Whether a channel to `server` may ask a proxy.
bool UsesProxy(const std::string& server) {
  grpc::ChannelArguments arguments;
  SetProxyUse(server, &arguments);
  const grpc_channel_args c = arguments.c_channel_args();
  for (size_t i = 0; i < c.num_args; ++i) {
    if (std::string(c.args[i].key) == GRPC_ARG_ENABLE_HTTP_PROXY) {
      EXPECT_EQ(c.args[i].type, GRPC_ARG_INTEGER);
      return c.args[i].value.integer != 0;
    }
  }
  return true;
}

TEST(NoProxyTest, TurnsTheProxyOff) {
  {
    const Environment environment{Environment::Variables()};
    EXPECT_FALSE(UsesProxy("127.0.0.1:50051"));
    EXPECT_FALSE(UsesProxy("[::1]:50051"));
    EXPECT_FALSE(UsesProxy("localhost:50051"));
    EXPECT_TRUE(UsesProxy("a.example:50051"));
  }
  for (const char* name : {"no_grpc_proxy", "no_proxy", "NO_PROXY"}) {
    const Environment environment(
        Environment::Variables{{name, "example:50051"}});
    EXPECT_FALSE(UsesProxy("a.example:50051")) << name;
    EXPECT_TRUE(UsesProxy("a.example:50052")) << name;
    EXPECT_TRUE(UsesProxy("b.other:50051")) << name;
    EXPECT_FALSE(UsesProxy("127.0.0.1:50051")) << name;
  }
}

TEST(NoProxyTest, TheFirstVariableCounts) {
  const Environment environment(Environment::Variables{
      {"no_grpc_proxy", ""}, {"no_proxy", "first"}, {"NO_PROXY", "second"}});
  EXPECT_FALSE(UsesProxy("first:1"));
  EXPECT_TRUE(UsesProxy("second:1"));
}

}  // namespace
}  // namespace recurve
