"""What the papers' theorems say in numbers: Lyapunov functions and right-hand sides, to hold measured curves against.

One file for each paper, with its symbols. A bound needs constants that a problem may not know, such as the variance of
its minibatch gradients; they are arguments, and each file says where they come from.
"""
