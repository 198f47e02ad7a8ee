# Writes the files of a folder as the list that server/page/page.h declares:
#   cmake -DFOLDER=... -DOUTPUT=... -P embed_page.cmake
# index.html is "/", any other "/ui/NAME".
file(GLOB files RELATIVE ${FOLDER} ${FOLDER}/*.html ${FOLDER}/*.css ${FOLDER}/*.js ${FOLDER}/*.svg)
list(SORT files)
set(arrays "")
set(entries "")
set(index 0)
foreach(file IN LISTS files)
  file(READ ${FOLDER}/${file} bytes HEX)
  string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  get_filename_component(extension ${file} LAST_EXT)
  string(SUBSTRING ${extension} 1 -1 extension)
  set(type "")
  if(extension STREQUAL "html")
    set(type "text/html; charset=utf-8")
  elseif(extension STREQUAL "css")
    set(type "text/css; charset=utf-8")
  elseif(extension STREQUAL "js")
    set(type "text/javascript; charset=utf-8")
  else()
    set(type "image/svg+xml")
  endif()
  set(path "/ui/${file}")
  if(file STREQUAL "index.html")
    set(path "/")
  endif()
  string(APPEND arrays "constexpr unsigned char kFile${index}[] = {\n${bytes}\n};\n")
  string(APPEND entries "      {\"${path}\", \"${type}\", FileView(kFile${index}, sizeof(kFile${index}))},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(WRITE ${OUTPUT} "// Written by cmake/embed_page.cmake.
#include <cstddef>

#include \"server/page/page.h\"

namespace recurve {
namespace {

${arrays}
absl::string_view FileView(const unsigned char* bytes, size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

}  // namespace

absl::Span<const PageFile> PageFiles() {
  static const PageFile files[] = {
${entries}  };
  return files;
}

}  // namespace recurve
")
