# cmake -DFOLDER=docs/howto -DOUT=project_files.cpp -P embed_project.cmake: the files that `muster new` writes, as one C++ table.
set(rows "")
foreach(pair project/CMakeLists.txt=CMakeLists.txt project.cpp=main.cpp project/gitignore=.gitignore project/README.md=README.md)
  string(REGEX MATCH "^(.*)=(.*)$" _ ${pair})
  set(name ${CMAKE_MATCH_2})
  file(READ "${FOLDER}/${CMAKE_MATCH_1}" text)
  string(APPEND rows "    {\"${name}\", R\"file(${text})file\"},\n")
endforeach()
file(WRITE "${OUT}" "#include \"project_files.h\"\n\nnamespace muster::cli {\n\nconst std::vector<ProjectFile>& project_files() {\n  static const std::vector<ProjectFile> files{\n${rows}  };\n  return files;\n}\n\n}  // namespace muster::cli\n")
