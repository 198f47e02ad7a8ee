#include "server/page/page.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace recurve {
namespace {

TEST(PageTest, KnowsHostsOfThisMachine) {
  for (const char* host :
       {"", "localhost", "LocalHost:9090", "a.localhost", "127.0.0.1",
        "127.0.0.1:9090", "10.0.0.7:80", "[::1]", "[::1]:9090", "0:9090"}) {
    EXPECT_TRUE(IsLocalHost(host)) << host;
  }
  for (const char* host :
       {"example.com", "example.com:9090", "localhost.example.com",
        "127.0.0.1.example.com", "notlocalhost", "1.example", "x:127.0.0.1",
        ".", ":80", "1.0x7f"}) {
    EXPECT_FALSE(IsLocalHost(host)) << host;
  }
}

TEST(PageTest, HasTheFilesThatItNames) {
  ASSERT_TRUE(IsPagePath("/"));
  EXPECT_FALSE(IsPagePath("/ui/"));
  EXPECT_FALSE(IsPagePath("/ui/index.html"));
  for (const PageFile& file : PageFiles()) {
    EXPECT_FALSE(file.content.empty()) << file.path;
    // Nothing from elsewhere, and nothing inline, which the policy would block.
    if (file.path != "/ui/icon.svg") {
      EXPECT_FALSE(absl::StrContains(file.content, "://")) << file.path;
    }
    for (const char* inline_code :
         {"style=", " onclick", "innerHTML", "eval("}) {
      EXPECT_FALSE(absl::StrContains(file.content, inline_code))
          << file.path << " has " << inline_code;
    }
    // Scripts import their neighbours.
    absl::string_view rest = file.content;
    while (true) {
      const size_t at = rest.find("from './");
      if (at == absl::string_view::npos) break;
      rest.remove_prefix(at + 8);
      const std::string name(rest.substr(0, rest.find('\'')));
      EXPECT_TRUE(IsPagePath(absl::StrCat("/ui/", name))) << name;
    }
  }
}

}  // namespace
}  // namespace recurve
