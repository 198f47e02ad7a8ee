#include "base/output_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "gtest/gtest.h"

namespace recurve {
namespace {

class OutputFileTest : public testing::Test {
 protected:
  OutputFileTest() { std::filesystem::create_directory(folder_); }
  ~OutputFileTest() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const {
    return folder_ + "/" + name;
  }

 private:
  const std::string folder_ = testing::TempDir() +
                              "/recurve_output_file_test." +
                              std::to_string(getpid());
};

TEST_F(OutputFileTest, NothingIsLeftAndNothingIsLost) {
  EXPECT_EQ(WhyNotWritable(Path("new")), "");
  EXPECT_FALSE(std::filesystem::exists(Path("new")));
  std::ofstream(Path("old")) << "a line";
  EXPECT_EQ(WhyNotWritable(Path("old")), "");
  std::ifstream old(Path("old"));
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(old), {}), "a line");
  // A link that leads nowhere.
  std::filesystem::create_symlink(Path("target"), Path("link"));
  EXPECT_EQ(WhyNotWritable(Path("link")), "");
  EXPECT_TRUE(std::filesystem::is_symlink(Path("link")));
  EXPECT_FALSE(std::filesystem::exists(Path("target")));
}

TEST_F(OutputFileTest, SaysWhyNot) {
  EXPECT_EQ(WhyNotWritable(Path("none/new")), "No such file or directory");
  EXPECT_EQ(WhyNotWritable(Path("")), "Is a directory");
  EXPECT_EQ(WhyNotWritable(Path(std::string(300, 'a'))), "File name too long");
}

// Opening it would wait for a reader.
TEST_F(OutputFileTest, PipesAreTakenOnTrust) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_TRUE(IsPipeOrDevice(Path("pipe")));
  EXPECT_EQ(WhyNotWritable(Path("pipe")), "");
  EXPECT_TRUE(IsPipeOrDevice("/dev/null"));
  EXPECT_FALSE(IsPipeOrDevice(Path("")));
  EXPECT_FALSE(IsPipeOrDevice(Path("new")));
}

TEST_F(OutputFileTest, AFullDeviceIsNoticed) {
  std::FILE* const file = std::fopen(Path("new").c_str(), "w");
  ASSERT_NE(file, nullptr);
  std::fputs("a line", file);
  EXPECT_TRUE(CloseWritten(file));
  std::FILE* const full = std::fopen("/dev/full", "w");
  ASSERT_NE(full, nullptr);
  std::fputs("a line", full);
  EXPECT_FALSE(CloseWritten(full));
}

}  // namespace
}  // namespace recurve
