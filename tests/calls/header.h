/* What the header says that each function may return. */
#ifndef CALLS_HEADER_H
#define CALLS_HEADER_H

#include <emberlm.h>
#include <map>
#include <set>
#include <string>

/* The statuses of each function: those that its comment names behind "Errors:", those of functions that are named there, and
 * those that the overview says every function may return. Ends the program if a header cannot be read. */
std::map<std::string, std::set<ember_status>> documented(const std::string &folder);

#endif
