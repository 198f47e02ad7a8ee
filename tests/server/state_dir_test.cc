#include "server/states/state_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/server/state_testing.h"

namespace recurve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Id(int i) {
  return absl::StrCat(absl::Hex(i, absl::kZeroPad16), "00000000000000ff");
}

class StateDirTest : public testing::Test {
 protected:
  StateDirTest() {
    std::string name = testing::TempDir() + "recurve_states_XXXXXX";
    parent_ = mkdtemp(name.data());
    path_ = parent_ + "/states";
  }
  ~StateDirTest() override { std::filesystem::remove_all(parent_); }

  std::unique_ptr<StateDir> Open() {
    auto dir = StateDir::Open(path_);
    EXPECT_TRUE(dir.ok()) << dir.status();
    return dir.ok() ? *std::move(dir) : nullptr;
  }
  absl::Status Write(StateDir& dir, int id, const TestState& state) {
    StateWriter writer = MakeWriter(state);
    return dir.Write(Id(id), writer);
  }
  void Touch(const std::string& name) { std::ofstream(path_ + "/" + name); }
  std::vector<std::string> FileNames() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  static std::vector<std::string> List(const StateDir& dir) {
    const auto ids = dir.List();
    EXPECT_TRUE(ids.ok()) << ids.status();
    return ids.value_or(std::vector<std::string>());
  }

  std::string parent_;
  std::string path_;
};

TEST_F(StateDirTest, KeepsStates) {
  const TestState first = MakeTestState(2, 65, 1);
  const TestState second = MakeTestState(3, 500000, 2);
  {
    const auto dir = Open();
    EXPECT_THAT(List(*dir), IsEmpty());
    ASSERT_TRUE(Write(*dir, 2, first).ok());
    ASSERT_TRUE(Write(*dir, 1, first).ok());
    ASSERT_TRUE(Write(*dir, 1, second).ok());  // in its place
  }
  const auto dir = Open();
  EXPECT_THAT(List(*dir), ElementsAre(Id(1), Id(2)));
  EXPECT_THAT(FileNames(),
              ElementsAre(Id(1) + ".state", Id(2) + ".state", "lock"));
  TestImport import;
  EXPECT_EQ(dir->Read(Id(1), import.reader()).code(),
            absl::StatusCode::kResourceExhausted);  // of more than a megabyte
  TestImport small;
  ASSERT_TRUE(dir->Read(Id(2), small.reader()).ok());
  EXPECT_EQ(small.state().blocks, first.blocks);
  std::ifstream file(path_ + "/" + Id(1) + ".state", std::ios::binary);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}),
            ExportState(second));

  ASSERT_TRUE(dir->Remove(Id(1)).ok());
  EXPECT_TRUE(dir->Remove(Id(1)).ok());
  EXPECT_THAT(List(*dir), ElementsAre(Id(2)));
}

TEST_F(StateDirTest, IsForThisUserAlone) {
  const auto dir = Open();
  ASSERT_TRUE(Write(*dir, 1, MakeTestState(1, 1)).ok());
  struct stat info;
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  ASSERT_EQ(stat((path_ + "/" + Id(1) + ".state").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(StateDirTest, RefusesWhatIsNoWritableFolder) {
  path_ = parent_ + "/missing/states";
  EXPECT_EQ(StateDir::Open(path_).status(),
            absl::FailedPreconditionError(
                absl::StrCat("the folder of states ", path_,
                             " cannot be used: No such file or directory")));
  path_ = parent_ + "/file";
  std::ofstream(path_) << "x";
  EXPECT_EQ(StateDir::Open(path_).status().message(),
            absl::StrCat("the folder of states ", path_,
                         " cannot be used: Not a directory"));
  const absl::Status status = StateDir::Open("/proc").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("no file can be made in the folder of states /proc: "));
}

// With a lock from before it was made read-only. Permissions do not bind root.
TEST_F(StateDirTest, RefusesAReadOnlyFolder) {
  Open().reset();
  ASSERT_EQ(chmod(parent_.c_str(), 0755), 0);
  ASSERT_EQ(chmod(path_.c_str(), 0555), 0);
  ASSERT_EQ(chmod((path_ + "/lock").c_str(), 0666), 0);
  const bool is_root = geteuid() == 0;
  ASSERT_EQ(is_root ? seteuid(65534) : 0, 0);
  const absl::Status status = StateDir::Open(path_).status();
  ASSERT_EQ(is_root ? seteuid(0) : 0, 0);
  ASSERT_EQ(chmod(path_.c_str(), 0755), 0);
  EXPECT_EQ(status, absl::FailedPreconditionError(absl::StrCat(
                        "no file can be made in the folder of states ", path_,
                        ": Permission denied")));
}

TEST_F(StateDirTest, IsForOneServer) {
  auto dir = Open();
  EXPECT_EQ(
      StateDir::Open(path_).status(),
      absl::FailedPreconditionError(absl::StrCat(
          "the folder of states ", path_, " is in use by another server")));
  dir.reset();
  EXPECT_TRUE(StateDir::Open(path_).ok());
}

TEST_F(StateDirTest, LeavesOtherFilesAlone) {
  Open().reset();
  const std::string upper = "0000000000000001000000000000000F";
  for (const std::string& name :
       {std::string("notes"), std::string("notes.tmp"), upper + ".state",
        upper + ".tmp", Id(1), Id(1) + "0.state", Id(2) + ".tmp",
        Id(3).substr(1) + ".state", Id(4) + ".state"}) {
    Touch(name);
  }
  const size_t before = FileNames().size();
  const auto dir = Open();
  EXPECT_THAT(List(*dir), ElementsAre(Id(4)));
  EXPECT_EQ(FileNames().size(), before - 1);  // the temporary file
  EXPECT_FALSE(std::filesystem::exists(path_ + "/" + Id(2) + ".tmp"));
}

TEST_F(StateDirTest, RefusesOtherIds) {
  const auto dir = Open();
  const TestState state = MakeTestState(1, 1);
  TestImport import;
  for (const std::string& id :
       {std::string(), Id(1) + "0", Id(1).substr(1), std::string("../x"),
        std::string(32, 'g'), std::string(32, 'A'), std::string(32, '\0')}) {
    StateWriter writer = MakeWriter(state);
    EXPECT_EQ(dir->Write(id, writer).code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(dir->Remove(id).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(dir->Read(id, import.reader()).message(),
              absl::StrCat("the id of a state is \"", absl::CHexEscape(id),
                           "\"; allowed are 32 of the digits 0-9 and a-f"));
  }
  EXPECT_THAT(FileNames(), ElementsAre("lock"));
}

TEST_F(StateDirTest, NamesTheFileThatCannotBeRead) {
  const auto dir = Open();
  const std::string file = path_ + "/" + Id(1) + ".state";
  TestImport missing;
  EXPECT_EQ(dir->Read(Id(1), missing.reader()),
            absl::NotFoundError(absl::StrCat(
                file, " cannot be opened: No such file or directory")));
  ASSERT_TRUE(Write(*dir, 1, MakeTestState(1, 1)).ok());
  std::filesystem::resize_file(file, 60);
  TestImport cut;
  EXPECT_EQ(
      dir->Read(Id(1), cut.reader()),
      absl::DataLossError(absl::StrCat(
          file, ": the state ends too early: in its head, after 60 bytes")));
  std::filesystem::resize_file(file, 0);
  TestImport empty;
  EXPECT_EQ(dir->Read(Id(1), empty.reader()).code(),
            absl::StatusCode::kDataLoss);
}

// A limit of the process in place of a full disk.
TEST_F(StateDirTest, KeepsTheEarlierFileWhenWritingFails) {
  const auto dir = Open();
  const TestState state = MakeTestState(2, 65);
  ASSERT_TRUE(Write(*dir, 1, state).ok());

  struct rlimit old_limit;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  struct rlimit limit = old_limit;
  limit.rlim_cur = 100000;
  const auto old_handler = signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const TestState larger = MakeTestState(2, 100000);
  const absl::Status status = Write(*dir, 1, larger);
  const absl::Status other = Write(*dir, 2, larger);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  signal(SIGXFSZ, old_handler);

  EXPECT_EQ(status,
            absl::ResourceExhaustedError(absl::StrCat(
                path_, "/", Id(1), ".tmp cannot be written: File too large")));
  EXPECT_EQ(other.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(FileNames(), ElementsAre(Id(1) + ".state", "lock"));
  TestImport import;
  ASSERT_TRUE(dir->Read(Id(1), import.reader()).ok());
  EXPECT_EQ(import.state().blocks, state.blocks);
}

// State `i`, of one of several sizes.
TestState StateOfRound(int i) {
  return MakeTestState(1 + i % 5, 1 + 7000 * (i % 3), uint64_t(i));
}

// Writes states until it is killed.
[[noreturn]] void WriteUntilKilled(const std::string& path) {
  auto dir = StateDir::Open(path);
  if (!dir.ok()) _exit(2);
  for (int i = 0;; ++i) {
    const TestState state = StateOfRound(i);
    StateWriter writer = MakeWriter(state);
    if (!(*dir)->Write(Id(i % 8), writer).ok()) _exit(3);
    if (i % 4 == 3 && !(*dir)->Remove(Id((i - 2) % 8)).ok()) _exit(4);
  }
}

TEST_F(StateDirTest, HasOnlyWholeFilesAfterAKill) {
  TestRandom random(7);
  int num_read = 0;
  int num_temporaries = 0;
  for (int round = 0; round < 200; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) WriteUntilKilled(path_);
    usleep(static_cast<useconds_t>(random.Uniform(0, 10000)));
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << WEXITSTATUS(status);
    if (!std::filesystem::exists(path_)) continue;

    for (const std::string& name : FileNames()) {
      num_temporaries += absl::EndsWith(name, ".tmp") ? 1 : 0;
    }
    const auto dir = Open();
    ASSERT_NE(dir, nullptr);
    for (const std::string& id : List(*dir)) {
      TestImport import;
      const absl::Status read = dir->Read(id, import.reader());
      ASSERT_TRUE(read.ok()) << "round " << round << ": " << read;
      ++num_read;
    }
    for (const std::string& name : FileNames()) {
      EXPECT_TRUE(name == "lock" || absl::EndsWith(name, ".state")) << name;
    }
  }
  // The kills came before, during and after writes.
  EXPECT_GT(num_read, 0);
  EXPECT_GT(num_temporaries, 0);
  RecordProperty("num_read", num_read);
  RecordProperty("num_temporaries", num_temporaries);
}

}  // namespace
}  // namespace recurve
