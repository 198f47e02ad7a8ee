#include "engine/loading/host_memory.h"

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint_files.h"

namespace recurve {
namespace {

// A machine with 1000 KiB available, and what a test adds.
class HostMemoryTest : public testing::Test {
 protected:
  HostMemoryTest() {
    Write("proc/meminfo",
          "MemTotal:       4000 kB\nMemFree:         100 kB\n"
          "MemAvailable:   1000 kB\nSwapFree:           0 kB\n");
  }
  void Write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = folder_.path() + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  // Version 2.
  void WriteGroup(const std::string& path, const std::string& max,
                  int64_t current, int64_t cached) {
    const std::string group = "sys/fs/cgroup" + path + "/";
    Write(group + "memory.max", max + "\n");
    Write(group + "memory.current", std::to_string(current) + "\n");
    Write(group + "memory.stat", "anon 5\nfile 7\ninactive_file " +
                                     std::to_string(cached - 1) +
                                     "\nactive_file 1\n");
  }
  HostMemory Memory() const {
    return AvailableHostMemory(folder_.path()).value_or(HostMemory{-1, false});
  }

  TempFolder folder_;
};

TEST_F(HostMemoryTest, IsWhatTheKernelSays) {
  EXPECT_EQ(Memory().available, 1000 * 1024);
  EXPECT_FALSE(Memory().limited);
  Write("proc/meminfo", "MemAvailable: 1000 kB\nSwapFree: 24 kB\n");
  EXPECT_EQ(Memory().available, 1024 * 1024);
  Write("proc/meminfo", "MemTotal: 1000 kB\n");
  EXPECT_EQ(AvailableHostMemory(folder_.path()), std::nullopt);
  EXPECT_EQ(AvailableHostMemory(folder_.path() + "/nothing"), std::nullopt);
  // This machine.
  const auto here = AvailableHostMemory();
  ASSERT_TRUE(here.has_value());
  EXPECT_GT(here->available, 1 << 20);
}

TEST_F(HostMemoryTest, AControlGroupMayLeaveLess) {
  Write("proc/self/cgroup", "0::/pod/container\n");
  WriteGroup("/pod/container", "max", 50'000, 10);
  EXPECT_EQ(Memory().available, 1000 * 1024);
  WriteGroup("/pod/container", "100000", 50'000, 20'000);
  EXPECT_EQ(Memory().available, 70'000);
  EXPECT_TRUE(Memory().limited);
  // Memory that the system can reclaim is available, too.
  Write("sys/fs/cgroup/pod/container/memory.stat",
        "inactive_file 20000\nslab_reclaimable 5000\n");
  EXPECT_EQ(Memory().available, 75'000);
  WriteGroup("/pod/container", "100000", 50'000, 20'000);
  WriteGroup("/pod", "90000", 60'000, 20'000);  // around it
  EXPECT_EQ(Memory().available, 50'000);
  WriteGroup("/pod", "10000", 60'000, 20'000);  // lowered since
  EXPECT_EQ(Memory().available, 0);
  WriteGroup("/pod", "100000000", 60'000, 20'000);
  EXPECT_EQ(Memory().available, 70'000);
}

TEST_F(HostMemoryTest, AContainerSeesItsGroupAsTheTop) {
  for (const char* path : {"0::/\n", "0::/../..\n", "0::/not/here\n"}) {
    Write("proc/self/cgroup", path);
    WriteGroup("", "100000", 50'000, 20'000);
    EXPECT_EQ(Memory().available, 70'000) << path;
  }
}

TEST_F(HostMemoryTest, ControlGroupsOfVersion1) {
  Write("proc/self/cgroup",
        "5:cpu,cpuacct:/a\n4:hugetlb,memory:/docker/1\n0::/\n");
  const std::string group = "sys/fs/cgroup/memory/docker/1/";
  Write(group + "memory.usage_in_bytes", "50000\n");
  Write(group + "memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_FALSE(Memory().limited);
  Write(group + "memory.limit_in_bytes", "100000\n");
  Write(group + "memory.stat",
        "inactive_file 9\ntotal_inactive_file 20000\ntotal_active_file 1\n");
  EXPECT_EQ(Memory().available, 70'001);
  EXPECT_TRUE(Memory().limited);
}

TEST(CheckHostMemoryTest, NamesWhatTakesTheMost) {
  HostNeeds needs = {90, 2000, 3000, 10, 20, 30, 5, "--kv-pages is 20"};
  EXPECT_TRUE(CheckHostMemory(needs, {5105, false}).ok());
  const auto message = [&](HostMemory memory) {
    const absl::Status status = CheckHostMemory(needs, memory);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    return std::string(status.message());
  };
  EXPECT_EQ(
      message({5104, false}),
      "--max-num-seqs is 30; the host has 5104 bytes of memory, and "
      "the model needs 5105: 90 for weights, 2000 for 20 pages of the KV "
      "cache, 3000 for the state of 30 sequences, 10 for sampling and 5 for "
      "the activations of a step (lower --max-num-seqs, --kv-pool-bytes, "
      "--kv-pages, --max-num-batched-tokens or --num-threads)");
  needs.state = 1000;
  EXPECT_THAT(message({3099, true}),
              testing::StartsWith("--kv-pages is 20; the control group (of a "
                                  "container, say) leaves 3099 bytes"));
  needs = {90, 2000, 1000, 1010, 20, 30, 0, "--kv-pages is 20"};
  EXPECT_THAT(message({4099, false}),
              testing::StartsWith("--max-num-seqs is 30; "));
  // No option helps.
  EXPECT_THAT(message({89, false}), testing::StartsWith("the host has 89"));
}

TEST(CheckSwapMemoryTest, WhatTheModelTakesIsNotLeft) {
  EXPECT_TRUE(CheckSwapMemory(40, 60, {100, false}).ok());
  EXPECT_TRUE(CheckSwapMemory(0, 100, {100, false}).ok());
  const absl::Status status = CheckSwapMemory(41, 60, {100, true});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(),
            "--swap-bytes is 41; the control group (of a container, say) "
            "leaves 100 bytes of memory, of which the model takes 60 (lower "
            "--swap-bytes; 0 saves none)");
}

}  // namespace
}  // namespace recurve
