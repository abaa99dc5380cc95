#include <emberlm.h>
