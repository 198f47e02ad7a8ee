// Result files, checked before minutes of measurement.
#ifndef RECURVE_BASE_OUTPUT_FILE_H_
#define RECURVE_BASE_OUTPUT_FILE_H_

#include <cstdio>
#include <string>

namespace recurve {

// Whether its reader can block the writer.
bool IsPipeOrDevice(const std::string& path);

// Why no file can be written at `path`, in the system's words; empty if one
// can. An existing file is left unchanged, and no new file is left behind.
// Pipes and devices are not tested: a pipe's reader would see end of file.
std::string WhyNotWritable(const std::string& path);

// Closes the file. False unless everything was written.
bool CloseWritten(std::FILE* file);

}  // namespace recurve

#endif  // RECURVE_BASE_OUTPUT_FILE_H_
