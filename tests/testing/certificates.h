// Certificates for tests of TLS, made on demand, so that none expires.
#ifndef RECURVE_TESTS_TESTING_CERTIFICATES_H_
#define RECURVE_TESTS_TESTING_CERTIFICATES_H_

#include <openssl/x509.h>

#include <memory>
#include <string>

namespace recurve {

struct PemPair {
  std::string certificate;
  std::string key;
};

// A PEM key of a type different from that of the certificates here.
std::string MakeRsaKey();

// A self-signed certificate of `name` with a key of this kind: a curve
// ("P-521"), "ED25519", "ED448", "RSA" or "RSA-PSS", with `bits`; valid between
// these seconds from now.
struct CertificateChoice {
  std::string kind = "P-256";
  int bits = 2048;
  long begin_seconds = -3600;
  long end_seconds = 365L * 86400;
  std::string name = "server";
  // Extensions, in the form of OpenSSL's configuration; empty: without.
  std::string hosts = "DNS:localhost,IP:127.0.0.1";
  std::string key_usage = "";
  std::string extended_key_usage = "";
  std::string basic_constraints = "";
};
PemPair MakeCertificate(const CertificateChoice& choice);

// Signs certificates with its own. P-256, valid for a day.
class TestAuthority {
 public:
  TestAuthority();

  const std::string& certificate() const { return pem_.certificate; }
  // For the host 127.0.0.1.
  PemPair Sign(const std::string& name) const;

 private:
  struct Free {
    void operator()(X509* x) const { X509_free(x); }
    void operator()(EVP_PKEY* x) const { EVP_PKEY_free(x); }
  };
  using Certificate = std::unique_ptr<X509, Free>;
  using Key = std::unique_ptr<EVP_PKEY, Free>;

  // Signed by `issuer`, or self-signed if that is null.
  Certificate Make(const std::string& name, EVP_PKEY* key, X509* issuer,
                   EVP_PKEY* issuer_key) const;
  static PemPair Pem(X509* certificate, EVP_PKEY* key);

  Key key_;
  Certificate certificate_;
  PemPair pem_;
};

}  // namespace recurve

#endif  // RECURVE_TESTS_TESTING_CERTIFICATES_H_
