#include "server/variables.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace recurve {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> Warnings(std::vector<const char*> environment) {
  environment.push_back(nullptr);
  return UnknownVariables({"RECURVE_HOST", "RECURVE_MAX_NUM_SEQS",
                           "RECURVE_MODEL", "RECURVE_METRICS_PORT"},
                          environment.data());
}

TEST(VariablesTest, NamesWhatIsMisspeltAndTheClosest) {
  EXPECT_THAT(Warnings({"RECURVE_MAX_NUM_SEQ=4"}),
              ElementsAre("RECURVE_MAX_NUM_SEQ is ignored: no flag has this "
                          "variable; the closest that one has is "
                          "RECURVE_MAX_NUM_SEQS"));
  EXPECT_THAT(
      Warnings({"PATH=/bin", "RECURVE_MODLE=a=b", "RECURVE_HOST=x",
                "recurve_host="}),
      ElementsAre("RECURVE_MODLE is ignored: no flag has this variable; the "
                  "closest that one has is RECURVE_MODEL",
                  "recurve_host is ignored: no flag has this variable; the "
                  "closest that one has is RECURVE_HOST"));
  // Nothing is near it.
  EXPECT_THAT(Warnings({"RECURVE_TEMPERATURE=1"}),
              ElementsAre("RECURVE_TEMPERATURE is ignored: no flag has this "
                          "variable"));
}

TEST(VariablesTest, IsSilentAboutOthers) {
  EXPECT_THAT(
      Warnings({"RECURVE_MODEL=m", "RECURVER=1", "MY_RECURVE_HOST=1", "NONE",
                "RECURVE_API_KEY=k", "RECURVE_SERVER=localhost:1",
                "RECURVE_TLS=1", "RECURVE_TLS_CA=f", "RECURVE_IMAGE=i",
                "RECURVE_MODEL_DIR=d", "RECURVE_TEST_DEVICE=cuda",
                "RECURVE_DEMO_MODEL=d", "RECURVE_LOAD_SECONDS=6",
                "RECURVE_HOSTILE_ROUNDS=40", "RECURVE_BENCH_REQUESTS=1"}),
      IsEmpty());
}

TEST(VariablesTest, IsSilentAboutServicesOfAnOrchestrator) {
  EXPECT_THAT(
      Warnings({"RECURVE_SERVICE_HOST=10.0.0.1", "RECURVE_SERVICE_PORT=50051",
                "RECURVE_SERVICE_PORT_GRPC=50051",
                "RECURVE_PORT=tcp://10.0.0.1:50051",
                "RECURVE_PORT_50051_TCP=tcp://10.0.0.1:50051",
                "RECURVE_PORT_50051_TCP_PROTO=tcp",
                "RECURVE_PORT_50051_TCP_PORT=50051",
                "RECURVE_PORT_50051_TCP_ADDR=10.0.0.1",
                "RECURVE_HEADLESS_SERVICE_HOST=10.0.0.1"}),
      IsEmpty());
  EXPECT_THAT(Warnings({"RECURVE_PORT=50051"}), testing::SizeIs(1));
  // Variables of a container that is linked as "recurve".
  EXPECT_THAT(Warnings({"RECURVE_NAME=/web/recurve", "RECURVE_ENV_PATH=/bin"}),
              IsEmpty());
}

}  // namespace
}  // namespace recurve
