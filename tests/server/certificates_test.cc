#include "server/transport/certificates.h"

#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/certificates.h"

namespace recurve {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr long kDay = 86400;

CertificateReport Inspect(const std::string& pem,
                          CertificateRole role = CertificateRole::kServer,
                          absl::Time now = absl::Now()) {
  return InspectCertificates(role, "--tls-cert c.pem", pem, now);
}

std::string Pem(const CertificateChoice& choice) {
  return MakeCertificate(choice).certificate;
}

TEST(CertificatesTest, SaysNothingOfThoseThatAllCanUse) {
  for (const char* kind : {"P-256", "P-384"}) {
    EXPECT_THAT(Inspect(Pem({.kind = kind})).warnings, IsEmpty()) << kind;
  }
  for (const int bits : {2048, 3072}) {
    EXPECT_THAT(Inspect(Pem({.kind = "RSA", .bits = bits})).warnings, IsEmpty())
        << bits;
  }
}

struct Case {
  CertificateChoice choice;
  std::string named;
};

TEST(CertificatesTest, NamesKeysThatSomeClientsCannotUse) {
  for (const Case& c : {
           Case{{.kind = "P-521"}, "ECDSA P-521;"},
           {{.kind = "secp256k1"}, "ECDSA secp256k1;"},
           {{.kind = "ED25519"}, "Ed25519;"},
           {{.kind = "ED448"}, "Ed448;"},
           {{.kind = "RSA-PSS"}, "RSA-PSS;"},
           {{.kind = "RSA", .bits = 2040}, "RSA of 2040 bits;"},
       }) {
    const std::string pem = Pem(c.choice);
    EXPECT_THAT(
        Inspect(pem).warnings,
        ElementsAre(AllOf(HasSubstr("--tls-cert c.pem: the certificate of "
                                    "'CN = server' has a key that clients on "
                                    "BoringSSL (grpcio"),
                          HasSubstr("it is " + c.named))));
    // Those that sign clients' are not shown to clients.
    EXPECT_THAT(Inspect(pem, CertificateRole::kClientCas).warnings, IsEmpty());
  }
}

TEST(CertificatesTest, NamesUsesThatSomeClientsRefuse) {
  EXPECT_THAT(Inspect(Pem({.key_usage = "critical,digitalSignature",
                           .extended_key_usage = "serverAuth,clientAuth",
                           .basic_constraints = "critical,CA:FALSE"}))
                  .warnings,
              IsEmpty());
  EXPECT_THAT(
      Inspect(Pem({.extended_key_usage = "anyExtendedKeyUsage"})).warnings,
      IsEmpty());
  for (const Case& c : {
           Case{{.hosts = ""}, "'CN = server' names no host: clients in Go"},
           {{.key_usage = "keyCertSign"}, "may not sign handshakes: clients"},
           {{.extended_key_usage = "clientAuth"}, "is not for servers: "},
           {{.basic_constraints = "CA:TRUE"}, "is that of a CA: clients in "},
       }) {
    const std::string pem = Pem(c.choice);
    EXPECT_THAT(Inspect(pem).warnings, ElementsAre(HasSubstr(c.named)));
    // Only the server's own is held to these.
    EXPECT_THAT(Inspect(Pem({}) + pem).warnings, IsEmpty());
    EXPECT_THAT(Inspect(pem, CertificateRole::kClientCas).warnings, IsEmpty());
  }
}

TEST(CertificatesTest, LooksAtTheChain) {
  const std::string good = Pem({});
  // They only sign there, which BoringSSL can check for more kinds.
  EXPECT_THAT(Inspect(good + Pem({.kind = "P-521"}) + Pem({.kind = "ED25519"}))
                  .warnings,
              IsEmpty());
  EXPECT_THAT(
      Inspect(good + "text between\n" + Pem({.kind = "ED448", .name = "root"}))
          .warnings,
      ElementsAre(AllOf(HasSubstr("'CN = root'"), HasSubstr("Ed448"))));
  EXPECT_THAT(
      Inspect(good + good + Pem({.end_seconds = -60, .name = "root"})).warnings,
      ElementsAre(AllOf(HasSubstr("'CN = root'"), HasSubstr("has expired"))));
}

TEST(CertificatesTest, NamesTheDates) {
  const absl::Time now = absl::Now();
  const std::string pem =
      Pem({.begin_seconds = -kDay, .end_seconds = 100 * kDay});
  const auto at = [&](long seconds, CertificateRole role) {
    return Inspect(pem, role, now + absl::Seconds(seconds)).warnings;
  };
  const std::string end = absl::FormatTime(
      "%Y-%m-%dT", now + absl::Seconds(100 * kDay), absl::UTCTimeZone());
  for (const auto role :
       {CertificateRole::kServer, CertificateRole::kClientCas}) {
    const std::string who =
        role == CertificateRole::kServer
            ? "clients that check certificates refuse it"
            : "clients with certificates that it has signed do not get in";
    EXPECT_THAT(
        at(-kDay - 60, role),
        ElementsAre(AllOf(HasSubstr("is not valid before "), HasSubstr(who))));
    EXPECT_THAT(at(-kDay + 60, role), IsEmpty());
    EXPECT_THAT(at(70 * kDay - 60, role), IsEmpty());
    EXPECT_THAT(at(70 * kDay + 60, role),
                ElementsAre(AllOf(HasSubstr("expires on " + end),
                                  HasSubstr("in 29 days: " + who))));
    EXPECT_THAT(at(100 * kDay - 60, role),
                ElementsAre(HasSubstr("in 0 days: ")));
    EXPECT_THAT(
        at(100 * kDay + 60, role),
        ElementsAre(AllOf(HasSubstr("has expired on " + end), HasSubstr(who))));
  }
}

TEST(CertificatesTest, TellsTheFirstExpiry) {
  const absl::Time now = absl::Now();
  EXPECT_EQ(Inspect("").first_expiry, std::nullopt);
  EXPECT_EQ(Inspect("no certificate\n").first_expiry, std::nullopt);
  const auto first =
      Inspect(Pem({.end_seconds = 90 * kDay}) +
              Pem({.end_seconds = 60 * kDay}) + Pem({.end_seconds = 80 * kDay}))
          .first_expiry;
  ASSERT_TRUE(first);
  EXPECT_LT(absl::AbsDuration(*first - now - absl::Seconds(60 * kDay)),
            absl::Minutes(10));
}

TEST(CertificatesTest, AListOfOldOnesIsNotToldAtLength) {
  std::string pem;
  for (int i = 0; i < 20; ++i) pem += Pem({.end_seconds = -60});
  const auto warnings = Inspect(pem, CertificateRole::kClientCas).warnings;
  ASSERT_EQ(warnings.size(), 9);
  EXPECT_THAT(warnings.back(), HasSubstr("12 more warnings"));
}

// Names are untrusted: each warning stays one line of the log.
TEST(CertificatesTest, NamesAreQuoted) {
  const auto warnings =
      Inspect(Pem({.end_seconds = -60, .name = "a\nb"})).warnings;
  ASSERT_EQ(warnings.size(), 1);
  EXPECT_EQ(warnings[0].find('\n'), std::string::npos) << warnings[0];
}

}  // namespace
}  // namespace recurve
