extern "C" int nothing_of_musters() { return 0; }
