#include "server/server_main.h"

int main(int argc, char** argv) { return recurve::ServerMain(argc, argv); }
