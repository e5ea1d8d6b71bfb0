# Loss of each step and memory of each rank, sharded and replicated: gnuplot -e "out='out/fsdp'" tools/fsdp_curves.gp
set terminal svg size 900,380 font "sans,12" background "white"
set output out . '/fsdp.svg'
set datafile separator ','
set multiplot layout 1,2
set grid lc rgb "#dddddd"
set xlabel "step"
set title "A book byte by byte, two ranks: training loss"
set ylabel "loss"
set key top right
plot out . '/ddp/rank0.csv' skip 1 using 1:2 with lines lw 3 lc rgb "#fdae6b" title "ddp", \
     out . '/fsdp/rank0.csv' skip 1 using 1:2 with lines lw 1 lc rgb "#1b9e77" title "fsdp"
set title "Memory of a rank for the training"
set ylabel "MiB"
set yrange [0:*]
set key bottom right
plot for [rank=0:1] out . '/ddp/rank' . rank . '.csv' skip 1 using 1:3 with lines lw 1.5 dt rank+1 lc rgb "#d95f02" title "ddp, rank " . rank, \
     for [rank=0:1] out . '/fsdp/rank' . rank . '.csv' skip 1 using 1:3 with lines lw 1.5 dt rank+1 lc rgb "#1b9e77" title "fsdp, rank " . rank
