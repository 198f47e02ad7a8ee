#include "tests/testing/certificates.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/rsa.h>
#include <openssl/x509v3.h>

#include <string>
#include <utility>

namespace recurve {
namespace {

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;

std::string Text(const Bio& bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, size);
}

void AddExtension(X509* certificate, X509* issuer, int id, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, id, value);
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

std::string KeyText(EVP_PKEY* key) {
  const Bio text(BIO_new(BIO_s_mem()), BIO_free);
  PEM_write_bio_PrivateKey(text.get(), key, nullptr, nullptr, 0, nullptr,
                           nullptr);
  return Text(text);
}

}  // namespace

std::string MakeRsaKey() {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
      EVP_RSA_gen(2048), EVP_PKEY_free);
  return KeyText(key.get());
}

PemPair MakeCertificate(const CertificateChoice& choice) {
  const bool rsa = choice.kind == "RSA" || choice.kind == "RSA-PSS";
  const bool edwards = choice.kind == "ED25519" || choice.kind == "ED448";
  EVP_PKEY_CTX* const context = EVP_PKEY_CTX_new_from_name(
      nullptr, rsa || edwards ? choice.kind.c_str() : "EC", nullptr);
  EVP_PKEY_keygen_init(context);
  if (rsa) EVP_PKEY_CTX_set_rsa_keygen_bits(context, choice.bits);
  if (!rsa && !edwards) {
    EVP_PKEY_CTX_set_group_name(context, choice.kind.c_str());
  }
  EVP_PKEY* generated = nullptr;
  EVP_PKEY_generate(context, &generated);
  EVP_PKEY_CTX_free(context);
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(generated,
                                                                EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(X509_new(),
                                                                X509_free);
  X509* const x = certificate.get();
  X509_set_version(x, 2);
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(x), 1);
  X509_gmtime_adj(X509_getm_notBefore(x), choice.begin_seconds);
  X509_gmtime_adj(X509_getm_notAfter(x), choice.end_seconds);
  X509_set_pubkey(x, key.get());
  X509_NAME_add_entry_by_txt(
      X509_get_subject_name(x), "CN", MBSTRING_UTF8,
      reinterpret_cast<const unsigned char*>(choice.name.c_str()), -1, -1, 0);
  X509_set_issuer_name(x, X509_get_subject_name(x));
  const std::pair<int, std::string> extensions[] = {
      {NID_subject_alt_name, choice.hosts},
      {NID_key_usage, choice.key_usage},
      {NID_ext_key_usage, choice.extended_key_usage},
      {NID_basic_constraints, choice.basic_constraints}};
  for (const auto& [id, value] : extensions) {
    if (!value.empty()) AddExtension(x, x, id, value.c_str());
  }
  X509_sign(x, key.get(), edwards ? nullptr : EVP_sha256());
  const Bio text(BIO_new(BIO_s_mem()), BIO_free);
  PEM_write_bio_X509(text.get(), x);
  return {Text(text), KeyText(key.get())};
}

TestAuthority::TestAuthority()
    : key_(EVP_EC_gen("P-256")),
      certificate_(Make("test authority", key_.get(), nullptr, key_.get())),
      pem_(Pem(certificate_.get(), key_.get())) {}

PemPair TestAuthority::Sign(const std::string& name) const {
  const Key key(EVP_EC_gen("P-256"));
  const Certificate certificate =
      Make(name, key.get(), certificate_.get(), key_.get());
  return Pem(certificate.get(), key.get());
}

TestAuthority::Certificate TestAuthority::Make(const std::string& name,
                                               EVP_PKEY* key, X509* issuer,
                                               EVP_PKEY* issuer_key) const {
  Certificate certificate(X509_new());
  X509* const x = certificate.get();
  X509_set_version(x, 2);
  uint64_t serial = 0;
  RAND_bytes(reinterpret_cast<unsigned char*>(&serial), 7);
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(x), serial);
  X509_gmtime_adj(X509_getm_notBefore(x), -3600);
  X509_gmtime_adj(X509_getm_notAfter(x), 86400);
  X509_set_pubkey(x, key);
  X509_NAME_add_entry_by_txt(
      X509_get_subject_name(x), "CN", MBSTRING_ASC,
      reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509* const signer = issuer != nullptr ? issuer : x;
  X509_set_issuer_name(x, X509_get_subject_name(signer));
  AddExtension(x, signer, NID_basic_constraints,
               issuer == nullptr ? "critical,CA:TRUE" : "CA:FALSE");
  AddExtension(x, signer, NID_subject_alt_name, "IP:127.0.0.1,DNS:localhost");
  X509_sign(x, issuer_key, EVP_sha256());
  return certificate;
}

PemPair TestAuthority::Pem(X509* certificate, EVP_PKEY* key) {
  const Bio text(BIO_new(BIO_s_mem()), BIO_free);
  PEM_write_bio_X509(text.get(), certificate);
  return {Text(text), KeyText(key)};
}

}  // namespace recurve
