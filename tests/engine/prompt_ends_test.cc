#include "engine/serving/prompt_ends.h"

#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "kv_cache/cache_manager.h"
#include "tests/testing/fake_runner.h"

namespace recurve {
namespace {

class PromptEndsTest : public testing::Test {
 protected:
  PromptEndsTest() {
    FakeRunnerOptions options;
    options.num_host_blocks = 40;
    runner_ = std::make_unique<FakeRunner>(options);
    cache_ = std::make_unique<CacheManager>(runner_->cache_spec(),
                                            &runner_->storage());
  }

  static std::vector<PrefixToken> Tokens(int32_t first, size_t count) {
    std::vector<PrefixToken> tokens;
    for (size_t i = 0; i < count; ++i) {
      tokens.push_back({first + static_cast<int32_t>(i), TokenKind::kPrompt});
    }
    return tokens;
  }
  PromptEnds::End End(float logit) {
    return {*cache_->Blank(64),
            std::make_shared<const std::vector<float>>(1000, logit)};
  }
  // -1: none.
  float Found(PromptEnds& ends, const PrefixDomain& domain,
              const std::vector<PrefixToken>& tokens) {
    const PromptEnds::End* const end = ends.Find(domain, tokens);
    return end == nullptr ? -1 : (*end->row)[0];
  }

  std::unique_ptr<FakeRunner> runner_;
  std::unique_ptr<CacheManager> cache_;
};

TEST_F(PromptEndsTest, FindsEqualPromptsOfTheDomain) {
  PromptEnds ends(1 << 20);
  const PrefixDomain domain = {1, "key"};
  EXPECT_EQ(Found(ends, domain, Tokens(5, 200)), -1);
  ends.Put(domain, Tokens(5, 200), End(1));
  ends.Put({2, "key"}, Tokens(5, 200), End(2));
  EXPECT_EQ(Found(ends, domain, Tokens(5, 200)), 1);
  EXPECT_EQ(Found(ends, {2, "key"}, Tokens(5, 200)), 2);
  EXPECT_EQ(Found(ends, {1, ""}, Tokens(5, 200)), -1);
  EXPECT_EQ(Found(ends, domain, Tokens(5, 199)), -1);
  EXPECT_EQ(Found(ends, domain, Tokens(5, 201)), -1);
  std::vector<PrefixToken> other = Tokens(5, 200);
  other[7].kind = TokenKind::kStep;
  EXPECT_EQ(Found(ends, domain, other), -1);
  ends.Put(domain, Tokens(5, 200), End(3));
  EXPECT_EQ(Found(ends, domain, Tokens(5, 200)), 3);
  EXPECT_EQ(ends.size(), 2);
  ends.Clear();
  EXPECT_EQ(ends.bytes(), 0);
  EXPECT_TRUE(cache_->CheckIdle().ok());
}

TEST_F(PromptEndsTest, TheLeastRecentlyUsedGoesFirst) {
  // Two and a half.
  PromptEnds ends(2 * (1000 * 4 + 100 * 8) + 2400);
  ends.Put({}, Tokens(1, 100), End(1));
  ends.Put({}, Tokens(2, 100), End(2));
  EXPECT_EQ(Found(ends, {}, Tokens(1, 100)), 1);
  ends.Put({}, Tokens(3, 100), End(3));
  EXPECT_EQ(ends.size(), 2);
  EXPECT_EQ(Found(ends, {}, Tokens(2, 100)), -1);
  EXPECT_TRUE(ends.EvictOldest());
  EXPECT_EQ(Found(ends, {}, Tokens(1, 100)), -1);
  EXPECT_EQ(Found(ends, {}, Tokens(3, 100)), 3);
  EXPECT_TRUE(ends.EvictOldest());
  EXPECT_FALSE(ends.EvictOldest());
  // One that is too large alone is not kept.
  ends.Put({}, Tokens(4, 3000), End(4));
  EXPECT_EQ(ends.size(), 0);
  EXPECT_TRUE(cache_->CheckIdle().ok());
}

}  // namespace
}  // namespace recurve
