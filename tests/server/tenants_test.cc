#include "server/tenants/tenants.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace recurve {
namespace {

using testing::HasSubstr;

class TenantsTest : public testing::Test {
 protected:
  TenantsTest() {
    std::string name = testing::TempDir() + "recurve_keys_XXXXXX";
    folder_ = mkdtemp(name.data());
    path_ = folder_ + "/keys";
  }
  ~TenantsTest() override { std::filesystem::remove_all(folder_); }

  static std::string Line(const std::string& name, const std::string& key,
                          const std::string& more = "") {
    const KeyDigest digest = DigestOfKey(key);
    return absl::StrCat(
        name, " sha256=",
        absl::BytesToHexString(absl::string_view(
            reinterpret_cast<const char*>(digest.data()), digest.size())),
        " ", more, "\n");
  }
  void Write(const std::string& text) const {
    std::ofstream(path_ + ".new") << text;
    std::filesystem::rename(path_ + ".new", path_);
  }
  std::unique_ptr<Tenants> Load() {
    return Tenants::Load(path_, &metrics_).value();
  }
  std::string LoadError() {
    return std::string(Tenants::Load(path_, &metrics_).status().message());
  }
  static absl::StatusOr<std::string> Who(Tenants& tenants,
                                         const std::string& value) {
    const auto tenant = tenants.Authenticate({value}, "header");
    if (!tenant.ok()) return tenant.status();
    return (*tenant)->name();
  }
  static absl::StatusOr<StreamTicket> Open(Tenants& tenants,
                                           const std::string& value) {
    std::chrono::milliseconds retry{0};
    RECURVE_ASSIGN_OR_RETURN(std::shared_ptr<Tenant> tenant,
                             tenants.Authenticate({value}, "header"));
    RECURVE_RETURN_IF_ERROR(tenant->OpenStreams(1, &retry));
    return StreamTicket(std::move(tenant));
  }

  Metrics metrics_;
  std::string folder_;
  std::string path_;
};

TEST_F(TenantsTest, KnowsTenantsByTheirKeys) {
  Write(Line("a", "key-a") + Line("b", "key-b"));
  const auto tenants = Load();
  EXPECT_EQ(Who(*tenants, "Bearer key-a").value(), "a");
  EXPECT_EQ(Who(*tenants, "bearer key-b").value(), "b");
  // RFC 9110, 11.4: one or more spaces.
  EXPECT_EQ(Who(*tenants, "Bearer   key-a").value(), "a");
  for (const char* value :
       {"", "Bearer", "Bearer ", "Bearer   ", "Basic key-a", "key-a"}) {
    const absl::Status status = Who(*tenants, value).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << value;
    EXPECT_THAT(std::string(status.message()), HasSubstr("'authorization: "));
  }
  for (const char* value : {"Bearer key-", "Bearer key-a ", "Bearer \tkey-a"}) {
    const absl::Status status = Who(*tenants, value).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << value;
    EXPECT_EQ(status.message(), "the API key is not known");
  }
  for (const std::vector<std::string>& headers :
       {std::vector<std::string>{"Bearer key-a", "Bearer key-b"}, {}}) {
    EXPECT_EQ(tenants->Authenticate(headers, "header").status().code(),
              absl::StatusCode::kUnauthenticated);
  }
}

TEST_F(TenantsTest, RefusesFilesThatCannotBeUsed) {
  EXPECT_THAT(LoadError(), HasSubstr("--api-keys-file " + path_ +
                                     " cannot be read: No such file"));
  std::filesystem::create_directory(path_);
  EXPECT_THAT(LoadError(), HasSubstr("is not a file"));
  std::filesystem::remove(path_);
  Write("a max_streams=0");
  EXPECT_THAT(LoadError(), HasSubstr("--api-keys-file " + path_ +
                                     ", line 1, tenant a: max_streams is 0"));
  Write(std::string((1 << 20) + 1, '\n'));
  EXPECT_THAT(LoadError(), HasSubstr("more than 1048576 bytes"));
}

TEST_F(TenantsTest, ReadsAChangedFileAndKeepsTheKeysWhenItIsBad) {
  Write(Line("a", "key-a"));
  const auto tenants = Load();
  tenants->ReloadIfChanged();
  EXPECT_TRUE(Who(*tenants, "Bearer key-a").ok());
  Write(Line("a", "key-a", "max_streams=0") + Line("b", "key-b"));
  tenants->ReloadIfChanged();
  EXPECT_TRUE(Who(*tenants, "Bearer key-a").ok());
  EXPECT_FALSE(Who(*tenants, "Bearer key-b").ok());
  std::filesystem::remove(path_);
  tenants->ReloadIfChanged();
  EXPECT_TRUE(Who(*tenants, "Bearer key-a").ok());
  Write(Line("b", "key-b"));
  tenants->ReloadIfChanged();
  EXPECT_FALSE(Who(*tenants, "Bearer key-a").ok());
  EXPECT_TRUE(Who(*tenants, "Bearer key-b").ok());
}

TEST_F(TenantsTest, StreamsAreCountedThroughReloads) {
  Write(Line("a", "key", "max_streams=2"));
  const auto tenants = Load();
  auto first = Open(*tenants, "Bearer key");
  auto second = Open(*tenants, "Bearer key");
  ASSERT_TRUE(first.ok() && second.ok());
  const absl::Status full = Open(*tenants, "Bearer key").status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(full.message(),
            "tenant a has 2 streams open; its max_streams is 2");
  Write(Line("b", "key-b"));
  tenants->ReloadIfChanged();
  EXPECT_FALSE(Open(*tenants, "Bearer key").ok());
  Write(Line("a", "key", "max_streams=1"));  // what is open counts
  tenants->ReloadIfChanged();
  first->Close();
  EXPECT_EQ(Open(*tenants, "Bearer key").status().code(),
            absl::StatusCode::kResourceExhausted);
  first->Close();  // once is enough
  StreamTicket moved = *std::move(second);
  EXPECT_FALSE(Open(*tenants, "Bearer key").ok());
  moved = StreamTicket();
  EXPECT_TRUE(Open(*tenants, "Bearer key").ok());
  EXPECT_TRUE(
      Open(*tenants, "Bearer key").ok());  // the destructor gave it back
}

TEST_F(TenantsTest, TokensAreTakenAndWhatIsNotUsedGivenBack) {
  // So slow that what flows in during the test does not matter.
  Write(Line("a", "key", "tokens_per_second=1 token_burst=1000000"));
  const auto tenants = Load();
  std::chrono::milliseconds retry{0};
  auto ticket = Open(*tenants, "Bearer key");
  ASSERT_TRUE(ticket.ok());
  ASSERT_TRUE(ticket->Charge(100'000, 800'000, &retry).ok());
  auto other = Open(*tenants, "Bearer key");
  const absl::Status none = other->Charge(100'000, 100'000, &retry);
  EXPECT_EQ(none.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(none.message()),
              HasSubstr("tenant a has no budget for 200000 tokens"));
  EXPECT_THAT(
      std::string(none.message()),
      HasSubstr("tokens_per_second is 1 with a token_burst of 1000000"));
  EXPECT_GT(retry, std::chrono::seconds(10'000));
  EXPECT_LE(retry, std::chrono::hours(24));
  // One token was generated and 100000 were appended.
  ticket->CountToken();
  ticket->Settle();
  ticket->Settle();
  ASSERT_TRUE(ticket->Charge(800'000, 0, &retry).ok());
  EXPECT_FALSE(other->Charge(200'000, 0, &retry).ok());
  ticket->Refund();
  EXPECT_TRUE(other->Charge(800'000, 50'000, &retry).ok());
  other->Close();  // gives back what may still have been generated
  EXPECT_TRUE(ticket->Charge(0, 80'000, &retry).ok());
}

TEST_F(TenantsTest, PagesAreTakenForWhatAStreamMayComeTo) {
  Write(Line("a", "key", "max_pages=10"));
  const auto tenants = Load();
  std::chrono::milliseconds retry{0};
  auto first = Open(*tenants, "Bearer key");
  auto second = Open(*tenants, "Bearer key");
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_TRUE(first->Charge(64, 6 * 64, &retry).ok());
  const absl::Status full = second->Charge(100, 93, &retry);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(full.message(),
            "tenant a has 7 pages of 64 tokens and asks for 4 more; its "
            "max_pages is 10");
  EXPECT_EQ(retry, std::chrono::seconds(1));
  EXPECT_TRUE(second->Charge(100, 92, &retry).ok());
  second->Refund();
  // The first has generated one token of its maximum: 65 are 2 pages.
  first->CountToken();
  first->Settle();
  EXPECT_FALSE(second->Charge(9 * 64, 0, &retry).ok());
  EXPECT_TRUE(second->Charge(8 * 64, 0, &retry).ok());
  // The next command goes on where the sequence is.
  EXPECT_TRUE(first->Charge(63, 0, &retry).ok());
  EXPECT_FALSE(first->Charge(1, 0, &retry).ok());
  first->Close();
  EXPECT_TRUE(second->Charge(2 * 64, 0, &retry).ok());
  second->Close();
  auto third = Open(*tenants, "Bearer key");
  EXPECT_FALSE(third->Charge(640, 1, &retry).ok());  // not ever
  EXPECT_EQ(retry, kNeverRetry);
  EXPECT_TRUE(third->Charge(640, 0, &retry).ok());
}

TEST_F(TenantsTest, ARollbackReturnsThePagesOfWhatIsForgotten) {
  Write(Line("a", "key", "max_pages=4"));
  const auto tenants = Load();
  std::chrono::milliseconds retry{0};
  auto ticket = Open(*tenants, "Bearer key");
  ASSERT_TRUE(ticket->Charge(64, 0, &retry).ok());
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(ticket->Charge(3 * 64, 0, &retry).ok()) << i;
    EXPECT_FALSE(ticket->Charge(1, 0, &retry).ok());
    ticket->RollBack(64);
  }
  auto other = Open(*tenants, "Bearer key");
  EXPECT_TRUE(other->Charge(3 * 64, 0, &retry).ok());
  EXPECT_FALSE(ticket->Charge(1, 0, &retry).ok());
}

TEST_F(TenantsTest, ALaterCommandThatCanNeverFitIsNotTriedAgain) {
  Write(Line("a", "key", "max_pages=4"));
  const auto tenants = Load();
  std::chrono::milliseconds retry{0};
  auto ticket = Open(*tenants, "Bearer key");
  ASSERT_TRUE(ticket->Charge(2 * 64, 0, &retry).ok());
  const absl::Status refused = ticket->Charge(3 * 64, 0, &retry);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.message(),
            "tenant a has 2 pages of 64 tokens and asks for 3 more; its "
            "max_pages is 4");
  EXPECT_EQ(retry, kNeverRetry);
  // One that would fit, were another stream gone, is.
  auto other = Open(*tenants, "Bearer key");
  ASSERT_TRUE(other->Charge(1, 0, &retry).ok());
  EXPECT_FALSE(ticket->Charge(2 * 64, 0, &retry).ok());
  EXPECT_EQ(retry, std::chrono::seconds(1));
  other->Close();
  EXPECT_TRUE(ticket->Charge(2 * 64, 0, &retry).ok());
}

TEST_F(TenantsTest, PagesAboveALoweredLimitStayAndAskForNoMore) {
  Write(Line("a", "key", "max_pages=10"));
  const auto tenants = Load();
  std::chrono::milliseconds retry{0};
  auto ticket = Open(*tenants, "Bearer key");
  ASSERT_TRUE(ticket->Charge(7 * 64 - 10, 0, &retry).ok());
  Write(Line("a", "key", "max_pages=5"));
  tenants->ReloadIfChanged();
  EXPECT_TRUE(ticket->Charge(5, 5, &retry).ok());  // of the page that it has
  EXPECT_EQ(ticket->Charge(6, 0, &retry).message(),
            "tenant a has 7 pages of 64 tokens and asks for 1 more; its "
            "max_pages is 5");
  EXPECT_EQ(retry, kNeverRetry);  // it would have 8
}

TEST_F(TenantsTest, SeveralCommandsAreTakenTogetherOrNotAtAll) {
  Write(Line("a", "key",
             "max_streams=4 max_pages=11 tokens_per_second=1 token_burst=200"));
  const auto tenants = Load();
  const std::vector<std::string> headers = {"Bearer key"};
  std::chrono::milliseconds retry{0};
  const std::shared_ptr<Tenant> tenant =
      *tenants->Authenticate(headers, "header");
  EXPECT_EQ(tenant->OpenStreams(5, &retry).message(),
            "tenant a has 0 streams open and asks for 5 more; its max_streams "
            "is 4");
  EXPECT_EQ(retry, kNeverRetry);
  ASSERT_TRUE(tenant->OpenStreams(3, &retry).ok());
  std::vector<StreamTicket> tickets;
  for (int i = 0; i < 3; ++i) tickets.emplace_back(tenant);
  EXPECT_FALSE(tenant->OpenStreams(2, &retry).ok());
  EXPECT_EQ(retry, std::chrono::seconds(1));
  // With the three that it has, a request would always ask for five.
  EXPECT_FALSE(tenant->OpenStreams(2, &retry, /*own=*/3).ok());
  EXPECT_EQ(retry, kNeverRetry);
  auto other = Open(*tenants, "Bearer key");
  const std::vector<StreamTicket*> all = {&tickets[0], &tickets[1],
                                          &tickets[2]};
  const auto charge = [&](int64_t append, int64_t generate) {
    return StreamTicket::ChargeAll(all, {{append, generate}, {1, 0}, {1, 0}},
                                   &retry);
  };
  EXPECT_FALSE(charge(9 * 64, 1).ok());  // 10 pages and two
  EXPECT_EQ(retry, kNeverRetry);
  // More than the bucket holds: a full one lets it go, and has a debt then.
  ASSERT_TRUE(charge(300, 200).ok());
  EXPECT_FALSE(other->Charge(1, 0, &retry).ok());
  EXPECT_GT(retry, std::chrono::seconds(100));
  for (StreamTicket* ticket : all) ticket->Refund();
  EXPECT_TRUE(charge(190, 0).ok());
  for (StreamTicket* ticket : all) ticket->Close();
  EXPECT_TRUE(tenant->OpenStreams(3, &retry).ok());
}

// What a rate refuses has taken no pages.
TEST_F(TenantsTest, PagesOfARefusedCommandAreFree) {
  Write(Line("a", "key", "max_pages=10 tokens_per_second=1 token_burst=64"));
  const auto tenants = Load();
  std::chrono::milliseconds retry{0};
  auto first = Open(*tenants, "Bearer key");
  ASSERT_TRUE(first->Charge(64, 0, &retry).ok());
  auto second = Open(*tenants, "Bearer key");
  const absl::Status refused = second->Charge(9 * 64, 0, &retry);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("has no budget for 576 tokens"));
  Write(Line("a", "key", "max_pages=10"));
  tenants->ReloadIfChanged();
  EXPECT_TRUE(second->Charge(9 * 64, 0, &retry).ok());
}

TEST_F(TenantsTest, AdminsAreThoseOfTheFile) {
  Write(Line("a", "key-a") + Line("ops", "key-o", "admin=true"));
  const auto tenants = Load();
  const auto admin = [&](const std::string& value) {
    const auto tenant = tenants->Authenticate({value}, "metadata entry");
    return tenant.ok() ? (*tenant)->CheckAdmin("Drain needs one")
                       : tenant.status();
  };
  EXPECT_TRUE(admin("Bearer key-o").ok());
  EXPECT_EQ(admin("Bearer key-a").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(admin("Bearer x").code(), absl::StatusCode::kUnauthenticated);
  Write(Line("a", "key-a", "admin=true") + Line("ops", "key-o"));
  tenants->ReloadIfChanged();
  EXPECT_TRUE(admin("Bearer key-a").ok());
  EXPECT_FALSE(admin("Bearer key-o").ok());
}

TEST_F(TenantsTest, TenantsAreFlowsWithTheirWeights) {
  Write(Line("a", "key-a") + Line("b", "key-b", "weight=3"));
  const auto tenants = Load();
  const auto flow = [&](const std::string& value) {
    return (*tenants->Authenticate({value}, "header"))->flow();
  };
  const Flow a = flow("Bearer key-a");
  const Flow b = flow("Bearer key-b");
  EXPECT_NE(a.id, b.id);
  EXPECT_NE(a.id, Flow().id);
  EXPECT_NE(b.id, Flow().id);
  EXPECT_EQ(a.weight, 1);
  EXPECT_EQ(b.weight, 3);
  EXPECT_EQ(a.part, 0.25);
  EXPECT_EQ(b.part, 0.75);
  Write(Line("b", "key-b"));
  tenants->ReloadIfChanged();
  EXPECT_EQ(flow("Bearer key-b").id, b.id);
  EXPECT_EQ(flow("Bearer key-b").part, 1);
}

TEST_F(TenantsTest, PrioritiesHaveACap) {
  Write(Line("a", "key-a") + Line("b", "key-b", "max_priority=7") +
        Line("c", "key-c", "max_priority=-1"));
  const auto tenants = Load();
  const auto check = [&](const std::string& value, int32_t priority) {
    return (*tenants->Authenticate({value}, "header"))->CheckPriority(priority);
  };
  EXPECT_TRUE(check("Bearer key-a", 0).ok());
  EXPECT_TRUE(check("Bearer key-a", -100).ok());
  const absl::Status refused = check("Bearer key-a", 1);
  EXPECT_TRUE(absl::IsPermissionDenied(refused));
  EXPECT_EQ(refused.message(),
            "priority is 1; tenant a may ask for at most 0, its max_priority");
  EXPECT_TRUE(check("Bearer key-b", 7).ok());
  EXPECT_FALSE(check("Bearer key-b", 8).ok());
  EXPECT_FALSE(check("Bearer key-c", 0).ok());
}

TEST_F(TenantsTest, UsageIsTheTenantsOwn) {
  Write(Line("a", "key-a") + Line("b", "key-b"));
  const auto tenants = Load();
  std::chrono::milliseconds retry{0};
  auto ticket = Open(*tenants, "Bearer key-a");
  ASSERT_TRUE(ticket->Charge(100, 10, &retry).ok());
  ticket->CountToken();
  const auto usage = [&](const std::string& value) {
    return (*tenants->Authenticate({value}, "header"))->usage();
  };
  EXPECT_EQ(usage("Bearer key-a").streams, 1);
  EXPECT_EQ(usage("Bearer key-a").pages, 2);
  EXPECT_EQ(usage("Bearer key-a").prompt_tokens, 100);
  EXPECT_EQ(usage("Bearer key-a").generated_tokens, 1);
  EXPECT_EQ(usage("Bearer key-b").streams, 0);
  EXPECT_EQ(usage("Bearer key-b").prompt_tokens, 0);
  // What is refused after all was never there.
  auto refused = Open(*tenants, "Bearer key-b");
  ASSERT_TRUE(refused->Charge(100, 10, &retry).ok());
  refused->Refund();
  EXPECT_EQ(usage("Bearer key-b").prompt_tokens, 0);
}

}  // namespace
}  // namespace recurve
