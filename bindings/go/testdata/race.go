// Two goroutines write one number: proof that the race detector sees it.
package main

func main() {
	number, done := 0, make(chan bool)
	go func() {
		for i := 0; i < 1000; i++ {
			number++
		}
		done <- true
	}()
	for i := 0; i < 1000; i++ {
		number++
	}
	<-done
	_ = number
}
