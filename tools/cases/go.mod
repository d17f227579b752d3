module github.com/fingerpost/fingerpost/tools/cases

go 1.26.3
