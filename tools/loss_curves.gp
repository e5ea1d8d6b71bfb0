# The loss of each step, on one rank and on two: gnuplot -e "out='out/demo'" tools/loss_curves.gp
set terminal svg size 720,420 font "sans,13" background "white"
set output out . '/loss.svg'
set datafile separator ','
set title "Digits: training loss, bf16-mixed, the same global batch"
set xlabel "step"
set ylabel "loss"
set logscale y
set grid lc rgb "#dddddd"
set key top right
plot out . '/one/loss.csv' skip 1 using 1:2 with lines lw 1.5 lc rgb "#d95f02" title "one rank", \
     out . '/two/loss.csv' skip 1 using 1:2 with lines lw 1.5 lc rgb "#1b9e77" title "two ranks"
