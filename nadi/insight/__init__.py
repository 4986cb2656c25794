"""What finished runs mean: times, metrics, loads of links, comparisons and explanations, from folders of results."""
