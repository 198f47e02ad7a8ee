// Files of results, which are asked for before minutes of measuring.
#ifndef RECURVE_BASE_OUTPUT_FILE_H_
#define RECURVE_BASE_OUTPUT_FILE_H_

#include <cstdio>
#include <string>

namespace recurve {

// A reader of it may make whoever writes wait.
bool IsPipeOrDevice(const std::string& path);

// Why no file can be written at `path`, as the system says it; empty if one
// can. What is there stays as it is, and nothing is left where there was
// nothing. Pipes and devices are taken on trust: a pipe's reader would see an
// end.
std::string WhyNotWritable(const std::string& path);

// Closes what was written. False if not all of it could be.
bool CloseWritten(std::FILE* file);

}  // namespace recurve

#endif  // RECURVE_BASE_OUTPUT_FILE_H_
