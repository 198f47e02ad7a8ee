#include "client/cli.h"

int main(int argc, char** argv) { return recurve::RunClient(argc, argv); }
