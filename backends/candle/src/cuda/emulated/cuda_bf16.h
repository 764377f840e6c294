#include "emulated.h"
