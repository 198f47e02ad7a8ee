#include "tools/recurve_model/cli.h"

int main(int argc, char** argv) { return recurve::RunModelTool(argc, argv); }
