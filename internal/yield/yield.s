// That this file is there lets the compiler take functions without a body.
