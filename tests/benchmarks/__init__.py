"""What the gateway costs, from outside: CPU time of its processes per request, beside what a bare proxy takes."""
