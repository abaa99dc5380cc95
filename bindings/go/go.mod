module emberlm

go 1.19
